"""Reports. In: compile records, and nothing else. Out: the ledger as figures, text and JSON."""
