"""Outputs of a training run: found, checked, delivered."""
