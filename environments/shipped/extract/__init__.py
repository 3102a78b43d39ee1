"""Figures read out of a financial statement."""
