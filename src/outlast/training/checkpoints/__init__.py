"""Checkpoints on disk: written whole, verified when they are read, the newest valid one loaded."""
