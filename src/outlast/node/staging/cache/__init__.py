"""The store of staged data: each item is fetched once and then shared by all attempts that see the cache.

Start with `data_cache`: `DataCache.obtain` returns an entry, or has one process fetch it. `user_directory` is
the directory of this user in a cache that users share, and refuses what others could exchange. `fetch_lock`
makes the other processes wait for the one that fetches, `in_use` marks the entries that must not be removed,
`held_entry` is an entry in use, `entry` reads and writes `entry.json`, `content_state` makes content
read-only and finds what was altered, `evicting_sink` makes room before bytes arrive, and `in_place` verifies
files that are used where they are and never copied.
"""
