"""What is trained: six families in plain PyTorch, every tensor with a leading seed axis."""
