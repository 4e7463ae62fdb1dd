"""Checkpoints on disk: written atomically, verified when read, the newest valid one loaded.

- checkpoint_store: load, save and remove the checkpoints of a run; retention: which old ones may go
- checkpoint_names: names in the directory; generations: which attempt may save; ranks: several processes
- checkpoint: one checkpoint's directory; file_format: one of its files; checksums: its blocks
- state_tree: states as JSON and buffers; arrays, numpy_arrays, torch_tensors, kept_files: their leaves
- copy_buffer: the copy of a state in memory; durable_files: reading, writing and syncing
"""
