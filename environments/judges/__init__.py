"""Models and people as judges: rubric, votes, budget, calibration."""
