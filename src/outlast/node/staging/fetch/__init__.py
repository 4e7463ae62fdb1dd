"""Fetching the bytes of one item: from one or several sources into a sink, resumed and verified.

Start with `fetch`: `fetch()` tries the sources until the item is complete or gives up with `FetchFailed`.
`context` is what the parts of one fetch share, with its `fetch_settings`; `file_identity` decides whether all
sources have the same file; `source_selection` picks the next source and its pause; `transfer` moves the
bytes, with `ordered_stream` and `receiver` for one or several connections and `throughput` to detect slow
sources and to add connections. `digests` and `crc32c` compute checksums, `disk_space` checks for room,
`part_file` is the sink for a plain file, and `receipt` reports progress and costs.
"""
