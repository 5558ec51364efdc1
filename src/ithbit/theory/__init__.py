"""What is proved: constructions, certificates, causal complexity, bounds. No training."""
