"""The trace store: inbox, committer, DuckDB, formats in, curation, data gate, datasets out."""
