"""What good means: problems, rewards, rollouts, grading, evaluation and its statistics."""
