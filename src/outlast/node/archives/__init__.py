"""Unpacking of archives while they arrive, safely, and with the ability to resume after a kill.

An archive comes from outside and is not trusted. From its first byte to the finished tree:

    sink            the interface through which a fetch hands over the bytes, block by block, and `BadArchive`
    unpacking       `UnpackingSink`, the entry point: collects the first block, picks a mode, finishes
    formats         detects the format from the first bytes, and nested archives by their names
    workspace       the hidden, locked directory beside the target that holds everything until the end
    unpack_modes    a plain tar is only parsed; anything else is also stored as it came
    unpack_context  what the readers of one archive and of the archives inside it share
    decoders, zstd  gzip, bzip2, xz and zstd decompression, with output in chunks of bounded size
    tar_parser      splits a tar, and the tars inside it, into actions and into bytes that are in no file
    tar_headers     parses header blocks, GNU long names and pax records
    safe_names      rejects absolute paths, `..`, control characters and names that are too long
    limits          bounds the bytes, members, nesting and compression ratio of one archive
    actions         the vocabulary between parsers and writer: make a directory, write a file, append, …
    skeleton        records the headers and padding of a tar, before the files they belong to are written
    writer          carries out the actions, and reads nested archives other than tars on the way
    tree            creates files and directories below one directory without ever following a link
    writeback       syncs to disk in the background while more bytes arrive
    resume          rebuilds the bytes of a tar from skeleton and files when a later process takes over
    zip_table       the table of contents of a zip, in parts of bounded size
    zip_unpacker    unpacks zips at the end, because their table of contents is at their end
    finalize        checks for conflicts, then renames the complete tree into place

Nothing is visible under the target's name before `finalize`. This package imports nothing from
`outlast.node.staging`, which uses it. `outlast.data` uses its parsers to read archives without unpacking.
"""
