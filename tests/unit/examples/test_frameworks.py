"""The code that the callbacks for frameworks share."""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from outlast.frameworks.opaque import pack, unpack
from outlast.training.checkpoints.state_tree import flatten
from outlast.training.errors import CheckpointError

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
    packed = pack(state, allow_pickle=True)
    flatten(packed)
    assert packed["model"]["weights"] is weights
    assert packed["plain"] is state["plain"]
    assert unpack(packed, allow_pickle=True) == state
    with pytest.raises(CheckpointError, match=r"needs a pickle of fractions.Fraction; .* allow_pickle=True"):
        unpack(packed, allow_pickle=False)


def test_objects_that_torch_loads_without_a_pickle_need_no_permission() -> None:
    sparse = torch.eye(3).to_sparse()
    state = {"dtype": torch.float16, "device": torch.device("cpu"), "sparse": sparse}
    packed = pack(state, allow_pickle=False)
    flatten(packed)
    back = unpack(packed, allow_pickle=False)
    assert (back["dtype"], back["device"]) == (torch.float16, torch.device("cpu"))
    assert torch.equal(back["sparse"].to_dense(), torch.eye(3))


def test_an_object_that_needs_a_pickle_is_named_when_it_is_saved() -> None:
    with pytest.raises(
        TypeError, match=r"the state\['a'\]\[1\] is a fractions.Fraction, .*allow_pickle=True"
    ):
        pack({"a": [1, Fraction(1, 3)]}, allow_pickle=False)


class Forged:
    """An object whose pickle creates a directory when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_forged_pickle_executes_nothing_unless_the_script_allows_it(tmp_path: Path, legacy: bool) -> None:
    path = tmp_path / "created"
    buffer = io.BytesIO()
    torch.save(Forged(path), buffer, _use_new_zipfile_serialization=not legacy)
    forged = {"deep": [{"outlast.pickled": buffer.getvalue()}]}
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        unpack(forged, allow_pickle=False)
    with pytest.raises(TypeError, match=r"needs|pickle"):
        pack(Forged(path), allow_pickle=False)
    assert not path.exists()
    unpack(forged, allow_pickle=True)
    assert path.exists()


@pytest.mark.parametrize("content", [b"", b"PK", b"not a pickle" * 100, 17, None, "text"])
def test_content_that_is_no_stored_object_is_a_clear_error(content: Any) -> None:
    for allow_pickle in (False, True):
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            unpack({"outlast.pickled": content}, allow_pickle)


def test_a_torch_in_which_weights_only_is_not_safe_loads_no_stored_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = pack({"dtype": torch.float16}, allow_pickle=False)
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(CheckpointError, match=r"2\.6 and later can"):
        unpack(packed, allow_pickle=False)
