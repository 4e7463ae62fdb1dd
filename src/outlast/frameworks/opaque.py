"""Objects of a framework's state that a checkpoint cannot hold as they are: pickled by torch, and back."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

from outlast.training.checkpoints.state_tree import take_apart

_MARK = "outlast.pickled"


def pack(value: Any) -> Any:
    """The same tree, with whatever a checkpoint cannot hold as the bytes that torch.save makes of it."""
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
        take_apart(value)
    except TypeError:
        return False
    return True
