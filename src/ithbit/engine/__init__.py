"""Training under the paper's protocol: specs, per-seed optimiser, loop, evaluation, checkpoints."""
