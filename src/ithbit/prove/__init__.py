"""Trained weights proved right on all inputs: bounds over sets of bit strings, search, certificate.

Nothing here imports torch but `runs.py`, which joins a proof to what `verify` observed.
"""
