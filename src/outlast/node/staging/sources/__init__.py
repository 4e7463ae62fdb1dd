"""Sources: the places that have the bytes of an item, each behind the same small interface.

Start with `base` (the protocols `Source` and `Body`) and `resolve` (from the URLs of an item to its sources).
`file_source` reads files, `http_source` reads http and https URLs, and `pelican_source` reads osdf and
pelican URLs, with `pelican_director` to query a federation, `pelican_responses` to parse its responses and
`pelican_routing` to choose a server. `tokens` finds the bearer token for a host. A source never retries: that
is the job of `fetch`.
"""
