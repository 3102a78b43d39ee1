"""reasoning-gym's generators, judged by their own verifiers."""
