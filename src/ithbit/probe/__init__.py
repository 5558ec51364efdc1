"""The same verdict for any PyTorch layer, and every input of a trained model instead of a
sample."""
