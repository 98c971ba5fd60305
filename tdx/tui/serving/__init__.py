"""The app in a browser, through textual-serve: for each page an app process of its own.

=================  ============================================================================
``serve.py``       what the ``tdx serve`` command calls
``access.py``      who may talk to the server
``server.py``      the server: the page, and a websocket for each app
``session.py``     one app process, from its start to its end
``driver.py``      the app's own end of the line
``page/``          the page
=================  ============================================================================
"""
