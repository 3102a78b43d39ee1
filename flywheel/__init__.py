"""The nouns: records, lineage, ids, settings, project files, errors. Imports nothing of ours."""
