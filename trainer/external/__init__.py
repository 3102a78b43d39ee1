"""Runs handed to engines of others: the job written, followed, its weights brought back."""
