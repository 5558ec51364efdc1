"""Training under the paper's protocol: steppers, per-seed optimiser, epoch loop, evaluation."""
