"""How a model acts on a problem: one contract, a harness a file."""
