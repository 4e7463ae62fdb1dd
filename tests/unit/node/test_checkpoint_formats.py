"""Which files of a working directory a training may resume from."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from outlast.node.checkpoint_formats import find_state

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(100)


@pytest.mark.parametrize(
    "name, content",
    [
        ("best.pt", b"weights"),
        ("runs/1/Checkpoint.PTH.TAR", b"weights"),
        ("state", pickle.dumps({"step": 1})),
        ("latest", b"PK\x03\x04" + bytes(30)),
        ("study.db", b"SQLite format 3\0" + bytes(80)),
    ],
)
def test_models_and_checkpoints_hold_state(tmp_path: Path, name: str, content: bytes) -> None:
    place = tmp_path / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    assert find_state(str(tmp_path), [("log.csv", 10**9), (name, len(content))]) == [name]


def test_logs_tables_pictures_and_what_cannot_be_read_hold_none(tmp_path: Path) -> None:
    contents = {"log.csv": b"1,2\n", "metrics.json": b"{}", "loss.png": PICTURE, "best.pt": b""}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "elsewhere").symlink_to(tmp_path / "log.csv")
    os.mkfifo(tmp_path / "pipe")
    found = [(path.name, path.lstat().st_size) for path in tmp_path.iterdir()]
    assert not find_state(str(tmp_path), [*found, ("gone", 7), ("pipe", 7)])
