"""Outputs of a training run: collection, validation and delivery."""
