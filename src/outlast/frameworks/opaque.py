"""Objects in a framework's state that a checkpoint cannot hold: pickled by torch, and restored."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

from outlast.training.checkpoints.state_tree import flatten

_MARK = "outlast.pickled"


def pack(value: Any) -> Any:
    """Return the same tree, with each object that a checkpoint cannot hold replaced by its pickle."""
    if _is_held(value):
        return value
    if type(value) in (dict, OrderedDict) and _is_held(dict.fromkeys(value)):
        return type(value)((key, pack(item)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(pack(item) for item in value)
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer)
    return {_MARK: buffer.getvalue()}


def unpack(value: Any) -> Any:
    """Return the tree that was packed. This unpickles: load only checkpoints that you trust."""
    if type(value) is dict and set(value) == {_MARK}:
        import torch

        return torch.load(io.BytesIO(value[_MARK]), weights_only=False)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, unpack(item)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(unpack(item) for item in value)
    return value


def _is_held(value: Any) -> bool:
    try:
        flatten(value)
    except TypeError:
        return False
    return True
