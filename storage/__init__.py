"""The trace store: inbox, committer, DuckDB, formats in, curation rules, gates on data, datasets out."""
