"""Where problems come from: one reader a format."""
