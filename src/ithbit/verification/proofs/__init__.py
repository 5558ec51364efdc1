"""Trained weights proved right on all inputs: bounds over sets of bit strings, search, certificate.

Only `runs.py` imports torch; it combines a proof with what `verify` observed.
"""
