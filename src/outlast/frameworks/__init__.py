"""Callbacks for training frameworks: `lightning`, `keras` and `transformers`.

Each module imports only its own framework. A callback saves between two steps and resumes there, also in the
middle of an epoch. No framework has a public way to do that bit for bit, so the modules use private
interfaces of the framework versions named in pyproject.toml.
"""
