"""Formats of other programs, one module per format, each with the protocol of a plugin.

A module of a format declares it as ``format = Format(...)``, from literals, and has the functions
of :class:`~tdx.rollouts.formats.registry.Exporter`.
"""
