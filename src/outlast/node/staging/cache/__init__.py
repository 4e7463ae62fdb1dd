"""The store of staged data: each item is fetched once and then shared by all attempts that see the cache.

Start with `data_cache`: `DataCache.obtain` returns an entry, or has one process fetch it. `fetch_lock` makes
the other processes wait for that one, `in_use` marks the entries that must not be removed, `entry` reads and
writes `entry.json`, `evicting_sink` makes room before bytes arrive, and `in_place` verifies files that are
used where they are and never copied.
"""
