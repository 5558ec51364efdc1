"""Many runs: which ones, how they are stacked, and the threads, workers or cluster for them."""
