"""Checkpoint files with valid checksums and any content, as somebody who knows the format can write them."""

from __future__ import annotations

import copy
import importlib.util
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outlast.training.checkpoints import checkpoint_names, file_format
from outlast.training.checkpoints.file_format import lay_out
from outlast.training.checkpoints.state_tree import flatten

_PREFIX = 16
#: Nodes for which torch is imported; without it they are an error of the installation.
_HOSTILE_TENSORS = [
    ["torch", "float64", [10**15], 8 * 10**15, 0],
    ["torch", "float64", [0, 2**61, 2**61], 0, 0],
    ["torch", "float32", [1], 4, 0, "meta"],
    ["torch", "nn", [1], 4, 0],
    ["torch", "qint8", [1], 1, 0],
    ["torch-view", "float64", [10**15], [0], 0, 8, 0],
    ["torch-view", "float64", [1], [1], 2**61, 8, 0],
]
#: Values in place of others: wrong types, and numbers that are negative, huge or long.
_HOSTILE: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    7,
    63,
    64,
    2**31,
    10**15,
    2**61,
    2**62,
    2**63,
    2**64,
    10**400,
    -(10**400),
    1.5,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "x",
    "\0",
    "..",
    "../x",
    "\ud800",
    "é" * 300,
    "<f8",
    "|V0",
    "|S2147483647",
    "|O",
    "float64",
    "nn",
    "meta",
    "cuda:9999",
    "00" * 8,
    [],
    {},
    {"a": 1},
    ["list"],
    ["dict", "a", 1, "a", 2],
    ["dict", ["list"], 1],
    ["set", 1, 1],
    ["set", ["dict"]],
    ["tuple", ["tuple", ["tuple"]]],
    ["bytes", 10**15, 0],
    ["bytes", 8, -64],
    ["bytes", 8, 64 * 10**15],
    ["file", "../x", 1, 0],
    ["float", "00"],
    ["int", "0x"],
    ["complex", "zz"],
    ["pickle", "gASV"],
    ["numpy", "<f8", "C", [10**15], 8 * 10**15, 0],
    ["numpy", "<f8", "C", [0, 10**15], 0, 0],
    ["numpy", "|S2147483647", "C", [0], 0, 0],
    ["numpy", ["sub", "<f8", [10**5, 10**4]], "C", [1], 8, 0],
    ["numpy", ["struct", [["a", "<f8", 2**40, None]], 2**41], "C", [1], 8, 0],
    ["numpy-view", "<f8", [10**15], [0], 0, 8, 0],
    ["numpy-view", "<f8", [2**61, 2**61], [0, 0], 0, 8, 0],
    *(_HOSTILE_TENSORS if importlib.util.find_spec("torch") else ()),
]


def contents(state: Any, kept: Any = None) -> tuple[dict[str, Any], bytes]:
    """Return the header of a state's file, and its buffers."""
    layout = lay_out(flatten(state, kept))
    content = memoryview(bytearray(layout.size))
    layout.fill(content)
    return json.loads(layout.header[_PREFIX:]), bytes(content[len(layout.header) :])


def write(place: Path, header: dict[str, Any] | bytes, buffers: bytes, step: int = 1000) -> Path:
    """Add a checkpoint with this header and these buffers as the newest one; return its directory."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text = text.ljust(-(-(_PREFIX + len(text)) // 64) * 64 - _PREFIX)
    content = b"outlast\2" + len(text).to_bytes(8, "little") + text + buffers
    head = {"step": step, "generation": 1000, "sequence": 1, "rank": 0, "world": 1}
    folder = place / checkpoint_names.checkpoint_name(step, (1000, 1))
    folder.mkdir(parents=True)
    file_format.write(str(folder / file_format.part_name()), head, memoryview(content))
    return folder


def mutations(header: dict[str, Any], seed: int, count: int) -> Iterator[bytes]:
    """Yield the JSON of this header with one to three random changes each."""
    choose = random.Random(seed)
    for number in range(count):
        changed = copy.deepcopy(header)
        for _ in range(choose.choice((1, 1, 1, 2, 3))):
            _mutate(changed, choose)
        text = json.dumps(changed).encode()
        if number % 50 == 0:
            text = text.replace(b'"tree":', b'"tree":%s,"tree":' % (b"[" * 10**5 + b"]" * 10**5), 1)
        elif number % 50 == 1:
            text = text.replace(b'"tree":', b'"tree":1,"tree":', 1)
        yield text


def _mutate(header: dict[str, Any], choose: random.Random) -> None:
    places = list(_places(header))
    parent, key = choose.choice(places)
    other, other_key = choose.choice(places)
    kind = choose.randrange(8)
    if kind < 4:
        parent[key] = copy.deepcopy(choose.choice(_HOSTILE))
    elif kind == 4:
        parent[key] = copy.deepcopy(other[other_key])
    elif kind == 5:
        del parent[key]
    elif kind == 6 and isinstance(parent, list):
        parent[key:key] = copy.deepcopy(parent[key : key + choose.randrange(1, 4)])
    else:
        for _ in range(choose.choice((1, 150, 300))):
            parent[key] = ["list", parent[key]]


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every element of the tree as its container and its index or key."""
    inner = list(enumerate(node)) if isinstance(node, list) else list(node.items())
    for key, value in inner:
        yield node, key
        if isinstance(value, (list, dict)):
            yield from _places(value)
