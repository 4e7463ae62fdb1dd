"""Staging: getting the data of an attempt into its data directory before the training script starts.

Start with `phase` (`StagePhase`, which the node program runs) and `stager` (`Stager.stage`: one item, from
its URLs to links in the data directory). `plan` and `item` are what the work order contains; `errors` and
`file_version` are shared by all rooms below, and `writable_copy` is for items that a job may change. Imports
go in one direction: `cache` (the store of data) uses `fetch` (the bytes of one item, resumed and verified),
which uses `sources` (places that have the bytes), which uses `http` (the protocol). `condor_plugin` is the
same fetch as a file transfer plugin of HTCondor, with `condor_plugin_codes` and `plugin_receipt`. Archives
are unpacked by `outlast.node.archives`, which never imports this package.
"""
