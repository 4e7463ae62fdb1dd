"""States come back from a checkpoint with the same types and bits; other values are refused by name."""

from __future__ import annotations

import json
import math
import random
import struct
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from outlast.training.checkpoints import file_format
from outlast.training.checkpoints.kept_files import File
from outlast.training.checkpoints.state_tree import MAX_DEPTH, FlatState, flatten, unflatten
from outlast.training.errors import Damaged
from support.checkpoints import content_of, write

RELAXED = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


def round_trip(state: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = str(tmp_path_factory.mktemp("trip") / "checkpoint")
    write(path, flatten(state))
    file_format.verify(path)
    return file_format.read_state(path)[0][0]


def same(left: Any, right: Any) -> bool:
    """Return True if both have the same types and bits; == ignores NaN, -0.0 and the type of True and 1."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, dict):
        pairs = zip(left.items(), right.items(), strict=False)
        return len(left) == len(right) and all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray | np.generic):
        alike = left.dtype == right.dtype and left.shape == right.shape
        return bool(alike and left.tobytes() == right.tobytes())
    return bool(left == right)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**62, max_value=2**400)
    | st.floats(allow_nan=True)
    | st.text(st.characters(exclude_categories=[]))
)
keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
dtypes = (
    hnp.scalar_dtypes()
    | hnp.byte_string_dtypes()
    | hnp.unicode_string_dtypes()
    | hnp.nested_dtypes(max_leaves=4)
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
trees = st.recursive(
    scalars
    | st.complex_numbers()
    | st.binary()
    | st.binary().map(bytearray)
    | st.sets(st.integers() | st.text() | st.binary())
    | st.frozensets(keys)
    | arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=12,
)


@RELAXED
@given(state=trees)
def test_any_tree_comes_back_the_same_in_type_order_and_every_bit(
    state: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert same(round_trip(state, tmp_path_factory), state)


@RELAXED
@given(array=arrays)
def test_any_numpy_array_and_its_scalars_come_back_the_same(
    array: np.ndarray, tmp_path_factory: pytest.TempPathFactory
) -> None:
    state = [array, array.T, array[::-1] if array.ndim else array, *array.reshape(-1)[:2]]
    for back, original in zip(round_trip(state, tmp_path_factory), state, strict=True):
        assert type(back) is type(original)
        assert back.dtype == original.dtype
        # Padding between the fields of a structure has no meaning; its bytes may differ.
        assert back.shape == original.shape
        assert same(back.tolist(), original.tolist())


def test_special_values_keep_their_bits(tmp_path_factory: pytest.TempPathFactory) -> None:
    odd_nan = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
    state = [
        -0.0,
        math.inf,
        -math.inf,
        odd_nan,
        5e-324,
        0.1,
        complex(-0.0, odd_nan),
        10**5000,
        -(2**64),
        True,
        1,
    ]
    assert same(round_trip(state, tmp_path_factory), state)
    lone = "\ud83d" + "\ude00"
    assert round_trip(lone, tmp_path_factory) == lone


def test_random_states_continue_where_they_were(tmp_path_factory: pytest.TempPathFactory) -> None:
    generators = [
        np.random.Generator(kind(7)) for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox)
    ]
    legacy = np.random.RandomState(3)
    state = {
        "python": random.getstate(),
        "new": [generator.bit_generator.state for generator in generators],
        "legacy": legacy.get_state(legacy=False),
        "tuple": legacy.get_state(),
    }
    back = round_trip(state, tmp_path_factory)
    expected = [generator.random(5).tolist() for generator in generators]
    for generator, saved in zip(generators, back["new"], strict=True):
        generator.bit_generator.state = saved
    assert [generator.random(5).tolist() for generator in generators] == expected
    drawn = legacy.rand(3).tolist()
    legacy.set_state(back["tuple"])
    assert legacy.rand(3).tolist() == drawn
    assert back["python"] == random.getstate()


def test_layout_byte_order_and_time_types_are_kept(tmp_path_factory: pytest.TempPathFactory) -> None:
    record = np.dtype([("a", ">i2"), ("b", "f8", (2, 3)), ("c", [("d", "S3"), ("e", "?")])], align=True)
    state = {
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "big": np.arange(5, dtype=">u4"),
        "strided": np.arange(20)[::3],
        "broadcast": np.broadcast_to(np.float32(2.5), (3, 3)),
        "records": np.ones(3, record),
        "when": np.array(["2026-11-15", "NaT"], "M8[s]"),
        "zero-d": np.array(3, np.int8),
        "empty": np.empty((0, 5), np.float16),
        "text": np.array(["", "ü"]),
        "no text": np.str_(""),
    }
    back = round_trip(state, tmp_path_factory)
    assert same(back, state)
    assert back["fortran"].flags.f_contiguous
    assert not back["fortran"].flags.c_contiguous
    assert all(array.flags.writeable for array in back.values() if isinstance(array, np.ndarray))


def test_counters_and_ordered_dicts_keep_their_type(tmp_path_factory: pytest.TempPathFactory) -> None:
    state = [Counter({3: 1, 7: 2}), OrderedDict([("z", 1), ("a", 2)])]
    assert same(round_trip(state, tmp_path_factory), state)


def test_a_state_of_many_blocks_comes_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    size = file_format.BLOCK
    state = [b"x", np.arange(size, dtype=np.uint8), b"y" * (size - 65), np.arange(3 * size // 8 + 7.0), b""]
    assert same(round_trip(state, tmp_path_factory), state)


class Net:
    def state_dict(self) -> dict[str, int]:
        return {}


class Name(str):
    pass


SELF: list[Any] = []
SELF.append(SELF)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"model": {"encoder": Net()}}, ["state['model']['encoder']", "Net", "state_dict()", "holds None"]),
        ([1, (2, {3: object()})], ["state[1][1][3]", "object"]),
        ({"f": len}, ["state['f']", "builtin_function"]),
        ({b"key": 1}, ["state has b'key'", "as a key"]),
        ({"s": {(1, Name("x"))}}, ["state['s']", "Name", "in a set"]),
        ([Name("x")], ["state[0]", "Name"]),
        ({"a": np.array([object()])}, ["state['a']", "dtype object"]),
        ({"a": np.ma.array([1, 2])}, ["state['a']", "MaskedArray", "numpy.asarray"]),
        ({"loop": SELF}, ["state['loop'][0]", "contains itself"]),
    ],
)
def test_a_value_that_cannot_be_saved_is_named_with_its_place(state: Any, words: list[str]) -> None:
    with pytest.raises(TypeError) as caught:
        flatten(state)
    for word in words:
        assert word in str(caught.value)


def test_depth_is_limited_and_every_state_that_can_be_saved_can_be_loaded(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    deepest: Any = {((((1,),),),): 2**70}
    for _ in range(MAX_DEPTH - 6):
        deepest = [deepest]
    assert same(round_trip(deepest, tmp_path_factory), deepest)
    for _ in range(10):
        deepest = [deepest]
    with pytest.raises(TypeError, match="nested more than"):
        flatten(deepest)


@pytest.mark.parametrize(
    "tree",
    [
        ["pickle", "gASV"],
        ["numpy", "O", "C", [1], 8, 0],
        ["numpy", "|O8", "C", [1], 8, 0],
        ["numpy", "f8,O", "C", [1], 16, 0],
        ["numpy", ["struct", [["a", "|O", 0]], 8], "C", [1], 8, 0],
        ["numpy", "<f8", "C", [2**40], 8 * 2**40, 0],
        ["numpy", "<f8", "C", [2**58], 16, 0],
        ["numpy", "i8,f8", "C", [1], 16, 0],
        ["numpy", "<f8", "C", [2**61, 2**61], 2**125, 0],
        ["numpy", "<f8", "C", [-1], -8, 0],
        ["numpy", "<f8", "C", [2], 16, 64],
        ["numpy", "<f8", "C", [2], 8, 0],
        ["numpy", "<f8", "Q", [2], 16, 0],
        ["numpy", "<V0", "C", [2**50], 0, 0],
        ["numpy", "<f8", "C", [1] * 100, 8, 0],
        ["numpy-scalar", "<f8", "00"],
        ["bytes", 2**50, 0],
        ["bytes", -1, 0],
        ["bytes", 8.0, 0],
        ["dict", "key"],
        ["dict", ["list"], 1],
        ["int", "10"],
        ["float", "zz"],
        ["str", "ff"],
        [],
        [["list"]],
        {"a": 1},
        ["bytes"],
    ],
)
def test_a_hostile_tree_is_refused_before_memory_is_allocated(tree: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    flat = flatten(np.zeros(2))
    write(path, FlatState(tree, flat.files, flat.buffers, flat.size))
    with pytest.raises(Damaged):
        file_format.read_state(path)


def test_a_hostile_trailer_with_a_good_seal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write(str(path), flatten(np.zeros(2)))
    content = path.read_bytes()
    size = content.rindex(b'{"format"')
    good = json.loads(content[size:].splitlines()[0])
    deep = "[" * 100_000 + "]" * 100_000
    bodies = [b"", b"[]", b"null", deep.encode(), b'{"step":' + b"9" * 5000 + b"}", b'{"step":NaN}']
    changes: list[dict[str, Any]] = [
        {"step": -1},
        {"step": True},
        {"size": 17},
        {"sequence": 1.5},
        {"crc32": []},
        {"crc32": [1, 2]},
        {"block": 0},
        {"rank": 1},
        {"world": 0},
    ]
    bodies += [json.dumps({**good, **change}).encode() for change in changes]
    for body in bodies:
        line = body + b"\n"
        seal = file_format._seal(line)
        path.write_bytes(content[:size] + line + seal + file_format._footer(len(line) + len(seal)))
        with pytest.raises(Damaged):
            file_format.read_state(str(path))


def test_buffers_are_placed_at_multiples_of_64() -> None:
    flat = flatten([b"abc", np.zeros(3), b"", b"x"])
    assert [offset % 64 for offset, _ in flat.buffers] == [0, 0, 0, 0]
    assert unflatten(1, None) == 1  # type: ignore[arg-type]


def test_arrays_that_share_memory_share_it_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = np.arange(12.0).reshape(3, 4)
    state = {"base": base, "same": base, "row": base[1], "back": base[::-1, ::2], "other": base.copy()}
    assert flatten(state).size < 2 * base.nbytes + 128
    back = round_trip(state, tmp_path_factory)
    for name, array in state.items():
        assert np.array_equal(back[name], array)
    back["base"][...] += 100
    for name, array in state.items():
        assert np.array_equal(back[name], array + 100 if name != "other" else array)


def test_separate_parts_of_one_array_are_saved_without_the_memory_between_them() -> None:
    base = np.zeros(1_000_000)
    assert flatten([base[:8], base[-8:]]).size == 128


def test_changing_a_loaded_state_does_not_change_the_checkpoint(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    write(path, flatten(np.zeros(1000)))
    (state, _), _ = file_format.read_state(path)
    state += 1
    file_format.verify(path)
    assert not file_format.read_state(path)[0][0].any()


def test_a_tree_that_refers_to_the_same_bytes_repeatedly_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    flat = flatten([bytes(1000)])
    write(path, FlatState(["list"] + [["bytes", 1000, 0]] * 5, flat.files, flat.buffers, flat.size))
    with pytest.raises(Damaged, match="more bytes than the file has"):
        file_format.read_state(path)


def test_a_file_comes_back_with_its_name_and_content(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tmp_path / "model.pt").write_bytes(b"weights")
    back = round_trip({"model": File(tmp_path / "model.pt")}, tmp_path_factory)["model"]
    assert isinstance(back, File) and back.name == "model.pt" and back.open().read() == b"weights"
    back.copy_to(tmp_path / "copy.pt")
    assert (tmp_path / "copy.pt").read_bytes() == b"weights"
    with pytest.raises(FileNotFoundError):
        flatten(File(tmp_path / "nothing"))


def test_padding_between_buffers_holds_no_old_memory_content() -> None:
    flat = flatten({"one": b"1" * 70, "two": np.ones(3, np.uint8), "three": b"3"})
    content = content_of(flat)
    (first, _), (second, _), (third, _) = flat.buffers
    begin = len(content) - flat.size
    between = [content[begin + first + 70 : begin + second], content[begin + second + 3 : begin + third]]
    assert [bytes(gap).strip(b"\0") for gap in between] == [b"", b""]
    assert [len(gap) for gap in between] == [58, 61]
