"""The same verdict for any PyTorch layer: causality, causal rank, what follows, what trains."""
