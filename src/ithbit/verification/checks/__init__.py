"""Second implementations of the checks: they share nothing with the search but the certificate."""
