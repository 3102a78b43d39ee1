"""The environments that come with Flywheel, a folder each."""
