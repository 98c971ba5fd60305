"""Looking at an env while it is stepped: views of traces as plain data.

``views`` needs no torch, so that a process without it can show what another one sends.
"""
