"""What is proved: constructions, certificates, causal complexity, bounds. Imports nothing from models/."""
