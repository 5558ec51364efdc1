"""Arguments for explicit weights in the trained blocks: exact hypotheses, bounds in balls."""
