"""The indexing task: given n bits and an index i, answer the i-th bit."""
