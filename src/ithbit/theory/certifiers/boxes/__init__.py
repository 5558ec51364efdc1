"""The generic certifier: boxes through any layers."""
