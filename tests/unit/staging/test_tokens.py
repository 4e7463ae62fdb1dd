"""Tokens: where they are found, which are refused, and which hosts get them."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from pathlib import Path

import pytest

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.sources import tokens as tokens_module
from outlast.node.staging.sources.tokens import TokenRejected, Tokens, from_command, from_file

NOW = 1_000_000.0


def jwt(expires: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires}).encode()).decode().rstrip("=")
    return "e30.%s.c2ln" % claims


def private(path: Path, content: str) -> str:
    path.write_text(content)
    path.chmod(0o600)
    return str(path)


def value(tokens: Tokens) -> str | None:
    found = tokens.token_for("a.example", 443, lambda: NOW)
    return None if found is None else found.value


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return the usual places for tokens, all of them empty, with a substitute for /tmp."""
    monkeypatch.setattr(tokens_module, "COMMON_FOLDER", str(tmp_path))
    usual = "bt_u%d" % os.geteuid()
    found = {"named": tmp_path / "named", "runtime": tmp_path / "run" / usual, "common": tmp_path / usual}
    found["condor"] = tmp_path / "creds" / "scitokens.use"
    for path in found.values():
        path.parent.mkdir(exist_ok=True)
    return found


def tokens_from(places: dict[str, Path], **more: str) -> Tokens:
    environment = {
        "BEARER_TOKEN_FILE": str(places["named"]),
        "XDG_RUNTIME_DIR": str(places["runtime"].parent),
        "_CONDOR_CREDS": str(places["condor"].parent),
        **more,
    }
    return Tokens(("a.example",), environment=environment)


# Places


def test_the_usual_places_are_searched_in_order(places: dict[str, Path]) -> None:
    assert value(tokens_from(places)) is None
    for name in ("condor", "common", "runtime", "named"):
        private(places[name], name + "\n")
        assert value(tokens_from(places)) == name
    assert value(tokens_from(places, BEARER_TOKEN=" environment ")) == "environment"


def test_htcondors_token_files_are_supported(places: dict[str, Path]) -> None:
    private(places["condor"], json.dumps({"access_token": "inside", "token_type": "bearer"}))

    assert value(tokens_from(places)) == "inside"


def test_an_unusable_or_expired_token_does_not_hide_a_valid_one(places: dict[str, Path]) -> None:
    private(places["named"], jwt(NOW - 9999))
    private(places["runtime"], "seen")
    places["runtime"].chmod(0o644)
    private(places["common"], "good")

    assert value(tokens_from(places)) == "good"


def test_if_all_tokens_are_unusable_the_first_one_is_reported(places: dict[str, Path]) -> None:
    private(places["runtime"], "seen")
    places["runtime"].chmod(0o640)
    with pytest.raises(SourceError, match="mode 640") as caught:
        value(tokens_from(places))
    assert caught.value.kind is ErrorKind.REFUSED


def test_a_configured_file_or_command_is_the_only_place(places: dict[str, Path], tmp_path: Path) -> None:
    private(places["named"], "elsewhere")
    with pytest.raises(SourceError, match="does not exist"):
        value(
            Tokens(("a.example",), file=str(tmp_path / "none"), environment=tokens_from(places).environment)
        )


# Refused tokens


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o610, 0o777])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = private(tmp_path / "token", "abc")
    Path(path).chmod(mode)
    with pytest.raises(TokenRejected, match="chmod 600 " + path):
        from_file(path)


def test_a_link_to_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    Path(private(tmp_path / "token", "abc")).chmod(0o644)
    (tmp_path / "link").symlink_to("token")
    with pytest.raises(TokenRejected, match="chmod 600"):
        from_file(str(tmp_path / "link"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = private(tmp_path / "token", "abc")
    os.chown(path, 12345, -1)
    with pytest.raises(TokenRejected, match="another user"):
        from_file(path)


def test_anything_but_a_regular_file_is_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(TokenRejected):
            from_file(str(path))


@pytest.mark.parametrize(
    "content", ["", " \n", "two words", "a\r\nX-Evil: 1", "ü", "{}", "[1]", "{", "x" * 70_000]
)
def test_content_that_is_not_a_token_is_refused_and_not_quoted(tmp_path: Path, content: str) -> None:
    with pytest.raises(TokenRejected) as caught:
        from_file(private(tmp_path / "token", content))
    assert not content.strip() or content not in str(caught.value)


def test_an_expired_token_is_refused_and_clocks_may_differ_a_little(tmp_path: Path) -> None:
    path = tmp_path / "token"
    tokens = Tokens(("a.example",), file=private(path, jwt(NOW - 60)))
    assert value(tokens) == path.read_text()
    private(path, jwt(NOW - 3 * 86400))
    with pytest.raises(SourceError, match="expired 3 d ago"):
        value(tokens)


@pytest.mark.parametrize("content", ["opaque", "a.b.c", "a.e30.c", jwt(NOW + 1), "a.W10.c"])
def test_a_token_without_expiry_time_or_before_it_is_used(tmp_path: Path, content: str) -> None:
    assert value(Tokens(("a.example",), file=private(tmp_path / "token", content))) == content


# Commands


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_a_command_is_run_each_time_and_its_output_is_the_token(tmp_path: Path) -> None:
    count = "import pathlib; p=pathlib.Path(%r); n=p.stat().st_size if p.exists() else 0;" % str(
        tmp_path / "n"
    )
    command = python(count + "p.write_text('x'*(n+1)); print('token%d' % n)")
    tokens = Tokens(("a.example",), command=tuple(command))

    assert (value(tokens), value(tokens)) == ("token0", "token1")


def test_a_command_that_fails_is_reported_without_its_output() -> None:
    program = "import sys; print('sesame'); print('sesame', file=sys.stderr); sys.exit(3)"
    with pytest.raises(TokenRejected, match="exit code 3") as caught:
        from_command(python(program))
    assert "sesame" not in str(caught.value)


def test_a_command_that_does_not_exist_is_reported() -> None:
    with pytest.raises(TokenRejected, match="cannot be run"):
        from_command(["/nowhere/token-helper"])


def test_a_command_that_hangs_is_killed_with_its_child_processes(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    program = "import subprocess, pathlib, time; p = subprocess.Popen(['sleep', '300']);"
    program += "pathlib.Path(%r).write_text(str(p.pid)); time.sleep(300)" % str(pid_file)
    with pytest.raises(TokenRejected, match="within 2 s"):
        from_command(python(program), timeout=2)
    until = time.monotonic() + 30
    while _is_alive(pid_file.read_text()):  # a signal takes a moment to arrive
        assert time.monotonic() < until
        time.sleep(0.01)


def _is_alive(pid: str) -> bool:
    try:
        return (Path("/proc") / pid / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# Hosts


@pytest.mark.parametrize(
    ("pattern", "host", "port", "expected"),
    [
        ("a.example", "a.example", 443, True),
        ("A.Example", "a.EXAMPLE", 8443, True),
        ("a.example:443", "a.example", 443, True),
        ("a.example:443", "a.example", 8443, False),
        ("*.example", "a.b.example", 443, True),
        ("*.example", "example", 443, False),
        ("*.example", "badexample", 443, False),
        ("a.example", "x.a.example", 443, False),
        ("a.example", "a.example.evil", 443, False),
        ("*", "a.example", 443, False),
        ("", "a.example", 443, False),
        ("::1", "::1", 443, True),
        ("[::1]:443", "::1", 443, True),
        ("[::1]:443", "::1", 444, False),
    ],
)
def test_a_token_is_for_the_hosts_that_are_listed_and_no_other(
    pattern: str, host: str, port: int, expected: bool
) -> None:
    assert Tokens((pattern,)).is_for(host, port) is expected
