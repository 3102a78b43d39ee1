"""Personal data and secrets: found by form, and replaced by names that mean the same in one
conversation and nothing outside it."""
