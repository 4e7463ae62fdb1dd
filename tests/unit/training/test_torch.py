"""Tensors in checkpoints; skipped if torch is not installed."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from outlast.training.checkpoints import checkpoint_names, file_format, torch_tensors
from outlast.training.checkpoints.state_tree import FlatState, flatten
from outlast.training.errors import CheckpointError
from outlast.training.training_session import SessionSettings
from support import forged_checkpoints
from support.checkpoints import Waiting, write

if "CI" in os.environ:
    import torch  # in CI nothing may be skipped
else:
    torch = pytest.importorskip("torch")


def round_trip(state: Any, tmp_path: Path) -> Any:
    path = str(tmp_path / "checkpoint")
    write(path, flatten(state))
    file_format.verify(path)
    return file_format.read_state(path)[0][0]


def bits(tensor: Any) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def test_every_dtype_comes_back_with_its_bits(tmp_path: Path) -> None:
    names = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 float8_e4m3fn"
    state = {name: torch.randn(3, 5).mul(9).to(getattr(torch, name)) for name in names.split()}
    back = round_trip(state, tmp_path)
    for name, tensor in state.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert bits(back[name]) == bits(tensor)


def test_strided_conjugated_empty_and_single_tensors_come_back(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = [base.T, base[:, ::2], base.expand(2, 3, 4), torch.tensor(7.5), torch.empty(0, 3)]
    state.append(base.to(torch.cfloat).mul(1j).conj())
    for back, original in zip(round_trip(state, tmp_path), state, strict=True):
        assert torch.equal(back, original)


def test_parameters_come_back_as_plain_tensors_and_sizes_as_tuples(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    back = round_trip({"weight": weight, "size": weight.shape}, tmp_path)
    assert type(back["weight"]) is torch.Tensor
    assert not back["weight"].requires_grad
    assert back["size"] == (2, 2)
    assert type(back["size"]) is tuple


def test_a_model_its_optimizer_and_the_random_state_continue_bit_for_bit(tmp_path: Path) -> None:
    def training() -> tuple[Any, Any, Any]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 6])

    def steps(parts: tuple[Any, Any, Any], count: int) -> None:
        model, optimizer, schedule = parts
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
            schedule.step()

    whole = training()
    steps(whole, 9)
    first = training()
    steps(first, 4)
    back = round_trip({"parts": [p.state_dict() for p in first], "rng": torch.get_rng_state()}, tmp_path)
    second = training()
    for part, state in zip(second, back["parts"], strict=True):
        part.load_state_dict(state)
    torch.set_rng_state(back["rng"])
    steps(second, 5)
    for left, right in zip(whole[0].state_dict().values(), second[0].state_dict().values(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.empty(3, device="meta"), "meta"),
        (lambda: torch.nn.Linear(1, 1), "state_dict()"),
    ],
)
def test_a_tensor_that_is_not_plain_is_refused_with_its_place(make: Any, words: str) -> None:
    with pytest.raises(TypeError, match=r"state\['x'\]") as caught:
        flatten({"x": make()})
    assert words in str(caught.value)


def test_a_dtype_that_this_torch_does_not_know_is_an_error_not_damage(tmp_path: Path) -> None:
    flat = flatten(torch.zeros(2))
    path = str(tmp_path / "checkpoint")
    write(path, FlatState(["torch", "float3", [2], 8, 0], flat.files, flat.buffers, flat.size))
    with pytest.raises(CheckpointError, match="float3"):
        file_format.read_state(path)


def test_tensors_that_share_memory_share_it_again(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    base = torch.arange(12.0).reshape(3, 4)
    state = {"base": base, "row": base[1], "columns": base.T[::2], "far": base[2:]}
    state["model"] = model.state_dict()
    state["as bytes"] = base.view(torch.uint8)
    back = round_trip(state, tmp_path)
    assert back["model"]["0.weight"].data_ptr() == back["model"]["1.weight"].data_ptr()
    back["base"] += 100
    for name in ("base", "row", "columns", "far"):
        assert torch.equal(back[name], state[name] + 100)
    assert torch.equal(back["as bytes"], (base + 100).view(torch.uint8))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "int64", "uint8"])
def test_a_checkpoint_from_a_machine_with_the_other_byte_order_has_the_same_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    tensor = torch.arange(1, 7).to(getattr(torch, dtype))
    unit = tensor.element_size() // (2 if tensor.is_complex() else 1)
    raw = tensor.view(torch.uint8).reshape(-1, unit).flip(1).reshape(-1)
    foreign = raw.view(tensor.dtype).clone()
    shared = {"alone": foreign.clone(), "whole": foreign, "part": foreign[2:4]}
    monkeypatch.setattr(sys, "byteorder", "big" if sys.byteorder == "little" else "little")
    write(str(tmp_path / "checkpoint"), flatten(shared))
    monkeypatch.undo()
    back = file_format.read_state(str(tmp_path / "checkpoint"))[0][0]
    assert torch.equal(back["alone"], tensor)
    assert torch.equal(back["whole"], tensor) and torch.equal(back["part"], tensor[2:4])


def test_a_tensor_of_a_missing_device_is_loaded_on_the_cpu_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = flatten([torch.ones(3), torch.ones(2)])
    for node in flat.tree[1:]:
        node.append("cuda:7")
    write(str(tmp_path / "checkpoint"), flat)
    back = file_format.read_state(str(tmp_path / "checkpoint"))[0][0]
    assert torch.equal(back[0], torch.ones(3)) and back[1].device.type == "cpu"
    assert capsys.readouterr().err.count("cuda:7, which does not exist here") == 1


def test_a_device_that_cannot_hold_the_tensors_is_an_error_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = flatten([torch.ones(3)])
    flat.tree[1].append("cuda:7")
    write(str(tmp_path / "checkpoint"), flat)
    # As if it had been found and were full when the tensors are copied to it.
    monkeypatch.setattr(torch_tensors, "_find_device", lambda torch, name: torch.device(name))
    with pytest.raises(CheckpointError, match="cannot be loaded on cuda:7"):
        file_format.read_state(str(tmp_path / "checkpoint"))


def rich_state() -> dict[str, Any]:
    base = torch.arange(24.0).reshape(4, 6)
    return {
        "tensor": torch.ones(3, 5, dtype=torch.bfloat16),
        "views": [base, base[1], base.T[::2], base[0].expand(3, 6), base.view(torch.uint8)],
        "empty": torch.empty(0, 4),
        "single": torch.tensor(1 + 2j),
        "flag": torch.tensor([True, False]),
    }


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("seed", range(2))
def test_a_sealed_checkpoint_with_any_tree_of_tensors_is_never_an_error_and_needs_little_memory(
    tmp_path: Path, seed: int, order: str
) -> None:
    place = tmp_path / "checkpoints"
    Waiting(SessionSettings(directory=str(place))).save("old", step=1)
    header, buffers = forged_checkpoints.contents(rich_state())
    header["order"] = order
    damaged = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for text in forged_checkpoints.mutations(header, seed, 150):
        folder = forged_checkpoints.write(place, text, buffers)
        state = Waiting(SessionSettings(directory=str(place))).load()
        if isinstance(state, str) and state == "old":
            damaged += 1
        else:
            flatten(state)
        for path in [folder, *filter(lambda path: checkpoint_names.is_bad(path.name), place.iterdir())]:
            shutil.rmtree(path, ignore_errors=True)
    assert damaged > 75
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 200_000  # kilobytes
