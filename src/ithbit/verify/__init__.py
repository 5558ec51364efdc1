"""Trained weights asked on every input, or searched for a wrong answer."""
