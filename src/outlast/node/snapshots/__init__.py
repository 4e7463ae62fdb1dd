"""Snapshots of checkpoints that a training script writes by itself, and the return to an older one."""
