"""Formats of other programs: one module per format, declared in ``interface``.

The module of a format has ``write(source, target, options)``, which returns remarks for the user.
If the format can be imported, it also has ``read(path)``, a context manager with a
:class:`~tdx.rollouts.formats.interface.ColumnReader`. ``conversion`` lists these functions.
"""
