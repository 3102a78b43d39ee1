"""The doors for people: the flywheel command."""
