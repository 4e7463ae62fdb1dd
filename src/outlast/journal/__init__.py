"""The journal: the only record of state, one SQLite file with one writer at a time.

`journal` stores and reads entries, `records` keeps their fold in memory, `codec` has the JSON form of
records, `sqlite_file` opens the file, `lease` makes sure that one controller writes at a time.
"""
