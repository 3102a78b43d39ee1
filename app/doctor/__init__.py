"""`flywheel doctor`: looks at every part, changes nothing, and says how to mend what is wrong."""
