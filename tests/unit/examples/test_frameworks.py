"""The code that the callbacks for frameworks share."""

from __future__ import annotations

import os
from collections import OrderedDict
from fractions import Fraction

import pytest

from outlast.frameworks.opaque import pack, unpack
from outlast.training.checkpoints.state_tree import flatten

if "CI" in os.environ:
    import torch  # in CI nothing may be skipped
else:
    torch = pytest.importorskip("torch")


def test_objects_that_a_checkpoint_cannot_hold_are_pickled_and_the_rest_is_unchanged() -> None:
    weights = torch.arange(4.0)
    state = {
        "model": OrderedDict(weights=weights, extra=Fraction(1, 3)),
        "list": [1, (Fraction(2, 3), "text")],
        "keys": {Fraction(1, 2): 1},
        "plain": {"a": weights},
    }
    packed = pack(state)
    flatten(packed)
    assert packed["model"]["weights"] is weights
    assert packed["plain"] is state["plain"]
    assert unpack(packed) == state
