"""Engines turn token ids into more token ids: one contract, one client, one file an engine."""
