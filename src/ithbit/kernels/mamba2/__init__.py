"""Mamba2."""
