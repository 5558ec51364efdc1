"""Our runs against the published numbers."""
