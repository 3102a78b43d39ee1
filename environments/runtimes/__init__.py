"""Where code runs: one contract, its kinds, and the pool that bounds them."""
