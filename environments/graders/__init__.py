"""Grader scripts: rewards that are single files with dependencies of their own."""
