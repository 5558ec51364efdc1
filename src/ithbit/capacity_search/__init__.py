"""The largest n that an architecture learns: a bracketed search on a store of ordinary runs."""
