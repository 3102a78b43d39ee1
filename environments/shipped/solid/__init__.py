"""CAD programs, built by a geometry kernel in a sandbox."""
