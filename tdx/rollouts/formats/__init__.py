"""Dumps in the files of others: one module a format, all of them listed in ``registry``.

A format's module has ``write(stored, target, options)``, which returns what is worth saying about
the result, and, where it can be imported, ``read(path)``, a context manager with a
:class:`~tdx.rollouts.formats.interface.ColumnReader`.
"""
