"""The journal: the only record of state, one SQLite file with one writer at a time."""
