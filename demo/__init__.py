"""The demo that `make demo` runs. In: options. Out: similarity tables and the ledger."""
