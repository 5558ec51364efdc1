"""Many runs: grouping into stacks, workers, the store they share."""
