"""Who samples what and when, and what is trained with it: one loop, on any clock."""
