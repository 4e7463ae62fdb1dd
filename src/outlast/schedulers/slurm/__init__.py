"""Slurm: the adapter and its parts."""
