"""Objects in a framework's state that a checkpoint cannot hold directly: stored in the format of torch.save.

Loading reads them with `weights_only=True`, which builds tensors and plain values and executes nothing. Any
other object needs a pickle. A pickle can execute whatever its author likes, so the script has to allow it.
"""

from __future__ import annotations

import io
import re
from collections import OrderedDict
from typing import Any, Sequence

from outlast.training.checkpoints.state_tree import flatten
from outlast.training.errors import CheckpointError

_MARK = "outlast.pickled"
#: Before this version of torch, a file could execute code in spite of `weights_only=True`.
_SAFE_SINCE = (2, 6)
_HINT = "; if you trust everyone who could have written the checkpoint, pass allow_pickle=True to Outlast()"


class NeedsPickle(TypeError):
    """An object can be saved only as a pickle, and the script does not allow pickles."""


def pack(value: Any, allow_pickle: bool, place: str = "the state", known: Sequence[Any] = ()) -> Any:
    """Return the same tree, with each object that a checkpoint cannot hold replaced by its stored form.

    `known` are functions and classes that may be called with any arguments: they need no pickle.
    Raises NeedsPickle, naming the place, for an object that could not be loaded without a pickle, unless
    `allow_pickle`; and what `torch.save` raises for objects that cannot be stored at all.
    """
    if _is_held(value):
        return value
    if type(value) in (dict, OrderedDict) and _is_held(dict.fromkeys(value)):
        return type(value)(
            (key, pack(item, allow_pickle, "%s[%.80r]" % (place, key), known)) for key, item in value.items()
        )
    if type(value) in (list, tuple):
        return type(value)(
            pack(item, allow_pickle, "%s[%d]" % (place, index), known) for index, item in enumerate(value)
        )
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer)
    content = buffer.getvalue()
    if not allow_pickle:
        try:
            _load_safely(torch, content, known)
        except Exception as error:
            raise NeedsPickle(
                "%s is a %s.%s, which a checkpoint can hold only as a pickle (%s). Loading a pickle can "
                "execute code: leave the object out of the state, or pass allow_pickle=True to Outlast()"
                % (place, type(value).__module__, type(value).__qualname__, error)
            ) from error
    return {_MARK: content}


def unpack(value: Any, allow_pickle: bool, known: Sequence[Any] = ()) -> Any:
    """Return the tree that was packed with the same `known`.

    Raises CheckpointError for an object that needs a pickle, unless `allow_pickle`: then it is unpickled, and
    a checkpoint that somebody else has written can execute any code.
    """
    if type(value) is dict and set(value) == {_MARK}:
        import torch

        try:
            if allow_pickle:
                return torch.load(io.BytesIO(value[_MARK]), weights_only=False)
            return _load_safely(torch, value[_MARK], known)
        except Exception as error:
            hint = "" if allow_pickle else _HINT
            raise CheckpointError(
                "an object in a checkpoint cannot be loaded: %s%s" % (error, hint)
            ) from error
    if type(value) in (dict, OrderedDict):
        return type(value)((key, unpack(item, allow_pickle, known)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(unpack(item, allow_pickle, known) for item in value)
    return value


def _load_safely(torch: Any, content: bytes, known: Sequence[Any]) -> Any:
    """Return a stored object; execute nothing but `known`. Raises ValueError if that is not possible."""
    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    if version < _SAFE_SINCE:
        raise ValueError("torch %s cannot load it safely; 2.6 and later can" % torch.__version__)
    try:
        with torch.serialization.safe_globals(list(known)):
            return torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise ValueError(_explain(torch, content) or "it is damaged") from error


def _explain(torch: Any, content: bytes) -> str | None:
    """Return the classes and functions for which a pickle is needed; None if it names none."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content))
    except Exception:
        return None  # it is not even a pickle
    return "it needs a pickle of %s" % ascii(", ".join(sorted(names)))[1:-1][:200] if names else None


def _is_held(value: Any) -> bool:
    try:
        flatten(value)
    except TypeError:
        return False
    return True
