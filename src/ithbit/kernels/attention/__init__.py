"""Softmax and linear attention, full and causal."""
