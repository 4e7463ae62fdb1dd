"""The sandbox of a job without a shared file system: its files, and commits of checkpoints from it."""
