"""Recall tasks beyond bits: what they are, bounds, explicit weights, verdicts, and their table."""
