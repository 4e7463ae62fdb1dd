"""Fixtures of the contract suite: the attacks run on the same clusters."""

from contract.conftest import cluster, experiment

__all__ = ["cluster", "experiment"]
