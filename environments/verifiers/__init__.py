"""Environments of the `verifiers` package, in a process and an environment of their own."""
