"""Trained weights tried on every input, or searched for a wrong answer."""
