"""Checkpoint files that were cut short, or overwritten in part, are recognised without being loaded."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile

import pytest

from outlast.node.pulse import no_pulse
from outlast.node.snapshots.file_checks import find_defect


def check(name: str, content: bytes) -> str | None:
    return find_defect(io.BytesIO(content), name, len(content), no_pulse)


def as_zip(method: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        archive.writestr("ckpt/data.pkl", b"small")
        for number in range(3):
            archive.writestr("ckpt/data/%d" % number, os.urandom(3000))
    return content.getvalue()


def as_safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [100], "data_offsets": [0, 400]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(400)


def as_npy() -> bytes:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10, 5), }".ljust(118 - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(400)


def as_hdf5() -> bytes:
    start = b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + struct.pack("<HHI", 4, 16, 0)
    return (start + struct.pack("<QQQQ", 0, 2**64 - 1, 2000, 2**64 - 1)).ljust(2000, b"\0")


WHOLE = {
    "torch.pt": as_zip(),
    "packed.npz": as_zip(zipfile.ZIP_DEFLATED),
    "model.safetensors": as_safetensors(),
    "array.npy": as_npy(),
    "weights.h5": as_hdf5(),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_file_has_no_defect_and_every_part_of_it_has_one(name: str) -> None:
    content = WHOLE[name]
    assert check(name, content) == ""
    for length in range(0, len(content), 61):
        assert check(name, content[:length]), "%d of %d bytes" % (length, len(content))


def test_a_file_that_was_overwritten_in_part_has_a_wrong_checksum() -> None:
    content = bytearray(as_zip())
    content[1000:2000] = os.urandom(1000)
    assert "checksum" in (check("torch.pt", bytes(content)) or "")


@pytest.mark.parametrize("content", [pickle.dumps({"a": 1})[:-2], b"\0" * 100, b"text"])
def test_an_unknown_format_is_not_judged(content: bytes) -> None:
    assert check("ckpt.pkl", content) is None


@pytest.mark.parametrize("name", ["ckpt.pt", "ckpt.pkl", "model.h5"])
def test_an_empty_checkpoint_is_torn_and_an_empty_mark_is_not(name: str) -> None:
    assert check(name, b"") == "it is empty"
    assert check("DONE", b"") is None


@pytest.mark.parametrize("name", WHOLE)
def test_random_content_never_raises(name: str) -> None:
    whole = WHOLE[name]
    for _ in range(100):
        content = bytearray(whole)
        for _ in range(20):
            content[os.urandom(1)[0] % len(content)] = os.urandom(1)[0]
            content[-1 - os.urandom(1)[0] % 200] = os.urandom(1)[0]
        check(name, bytes(content))
