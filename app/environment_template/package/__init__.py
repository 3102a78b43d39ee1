"""An environment for Flywheel."""
