"""Word problems and sums whose answer is one number."""
