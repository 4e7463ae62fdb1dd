"""Adapters for training frameworks: one module each, which alone imports its framework.

They stand on `outlast.training` and are written for the versions named in pyproject.toml: no framework has a
public way to stop between two steps and to go on there bit for bit.
"""
