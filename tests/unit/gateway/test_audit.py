"""The audit log: one safe, short line for each decision, whatever the disk does."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from outlast.gateway.monitoring.audit import LONGEST_LINE, Audit, audit_line, without_query


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_decision_is_one_line_with_its_time(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl", clock=lambda: 1_800_000_000.25)
    audit.write("accepted", request=7, user="rodan", code=None)
    audit.write("answered", request=7)
    audit.close()
    assert lines(tmp_path / "audit.jsonl")[0] == {
        "time": "2027-01-15T08:00:00.250Z",
        "event": "accepted",
        "request": 7,
        "user": "rodan",
    }
    assert len(lines(tmp_path / "audit.jsonl")) == 2


def test_the_file_is_for_its_owner_only_and_no_link_is_followed(tmp_path: Path) -> None:
    path, victim = tmp_path / "audit.jsonl", tmp_path / "victim"
    old = os.umask(0)
    try:
        Audit(path).write("accepted")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    victim.write_text("precious\n")
    path.unlink()
    path.symlink_to(victim)
    with pytest.raises(OSError):
        Audit(path).write("accepted")
    assert victim.read_text() == "precious\n"


@pytest.mark.parametrize(
    "value",
    [
        "a\nb",
        "\x1b[2Jgone",
        "\ud800",
        b"\xff\xfe\n",
        "\u202eevil",
        "x" * 10**6,
        float("nan"),
        10**400,
        [1],
        {"a": "\n"},
    ],
)
def test_whatever_a_message_contains_a_line_stays_one_short_line(tmp_path: Path, value: object) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(path, clock=lambda: 0.0)
    audit.write("refused", **{f"fact{number}": value for number in range(40)})
    audit.write("next")
    raw = path.read_bytes()
    assert raw.count(b"\n") == 2 and raw.isascii() and b"\x1b" not in raw
    assert len(raw.splitlines()[0]) <= LONGEST_LINE
    for line in lines(path):
        assert all(not isinstance(each, str) or each.isprintable() for each in line.values())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "PUT https://s3.example.org/a/b?X-Amz-Signature=abc failed",
            "PUT https://s3.example.org/a/b failed",
        ),
        ("https://a/b#token=abc", "https://a/b"),
        ("amqps://user:abc@broker/%2f?x=abc", "amqps://broker/%2f"),
        ("what? nothing", "what? nothing"),
    ],
)
def test_a_url_in_the_log_has_no_query_and_no_user(text: str, expected: str) -> None:
    assert without_query(text) == expected
    assert b"abc" not in audit_line("x", 0.0, {"reason": text})


def test_the_log_is_rotated_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(path, largest=1000, kept=3)
    for number in range(200):
        audit.write("accepted", request=number)
    audit.close()
    names = sorted(one.name for one in tmp_path.iterdir())
    assert names == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3"]
    kept = [line["request"] for name in reversed(names) for line in lines(tmp_path / name)]
    assert kept == list(range(200))[-len(kept) :]
    assert all(path.with_name(name).stat().st_size <= 1000 for name in names)
    assert all(stat.S_IMODE(path.with_name(name).stat().st_mode) == 0o600 for name in names)


def test_a_line_that_a_crash_cut_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    Audit(path).write("accepted")
    with path.open("ab") as file:
        file.write(b'{"event": "ans')
    Audit(path).write("answered")
    raw = path.read_bytes().splitlines()
    assert len(raw) == 3 and json.loads(raw[2])["event"] == "answered"


def test_a_full_disk_is_an_error_and_the_log_goes_on_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    audit, write = Audit(path), os.write
    audit.write("accepted")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
        with pytest.raises(OSError):
            audit.write("refused")
    audit.write("answered")
    audit.close()
    raw = path.read_bytes().splitlines()
    assert [json.loads(raw[0])["event"], json.loads(raw[-1])["event"]] == ["accepted", "answered"]


def test_lines_are_synced_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    audit = Audit(tmp_path / "audit.jsonl")
    for _ in range(250):
        audit.write("accepted")
    assert len(synced) == 2
    audit.sync()
    audit.sync()
    assert len(synced) == 3
