"""The worker processes behind the app, which hold torch and the envs.

The app asks with a :class:`~tdx.tui.backend.messages.Request`; a worker runs the function that the
request names, and answers with plain data that needs no torch to be read.
"""
