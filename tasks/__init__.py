"""Prefect tasks: retry, cache, wiring. Thin."""
