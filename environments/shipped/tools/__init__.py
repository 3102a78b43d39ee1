"""Calling the right functions with the right arguments, or none."""
