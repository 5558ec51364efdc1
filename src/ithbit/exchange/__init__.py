"""Inputs and answers for models trained elsewhere."""
