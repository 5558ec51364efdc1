"""Probing any PyTorch layer: causality, causal rank, what follows from it, what training finds."""
