"""Traces of other platforms, pulled from their servers: each source knows how its server is asked,
what comes goes the way of imported files."""
