"""The trained models: six families in plain PyTorch, every tensor with a leading seed axis."""
