"""The app in a browser, built on textual-serve; each page has its own app process.

=================  ============================================================================
``serve.py``       ``serve``, which ``tdx serve`` calls
``server.py``      the HTTP server: the token and the limit of open pages
``driver.py``      the Textual driver of a served app
``page/``          the page
=================  ============================================================================
"""
