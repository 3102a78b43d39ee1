"""Prefect flows: sentences made of tasks."""
