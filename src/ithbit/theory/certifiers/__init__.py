"""Ways to bound the margin from below over all n · 2^n inputs, each rigorous in real arithmetic."""
