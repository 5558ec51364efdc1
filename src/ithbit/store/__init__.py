"""Everything on disk: run folders and their records, tables of them, and atomic writing."""
