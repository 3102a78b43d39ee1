"""Writing programs: problems of our own and HumanEval, graded in a sandbox."""
