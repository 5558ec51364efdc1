"""The paper's tables from records."""
