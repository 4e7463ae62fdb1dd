"""`outlast data` as a process: interrupted and resumed, on a terminal and in a pipe, keeping secrets."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.behaviour import Behaviour, seeded
from servers.certificates import Authority
from servers.misbehaving import Misbehaving

OUTLAST = str(Path(sys.executable).parent / "outlast")
#: Longer than anything takes on a busy machine.
PATIENCE = 90.0
BODY = seeded(30_000_000)


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    with Misbehaving({"/a.bin": BODY}) as running:
        yield running


@contextlib.contextmanager
def typing(*arguments: str | Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [OUTLAST, *map(str, arguments)],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE)


def typed(*arguments: str | Path, **environment: str) -> tuple[int, str, str]:
    with typing(*arguments, **environment) as process:
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err


def test_ctrl_c_names_the_command_to_resume_and_it_resumes(server: Misbehaving, tmp_path: Path) -> None:
    server.always(Behaviour(stall_after=20_000_000))
    arguments = ("data", "fetch", server.url("/a.bin"), "--to", tmp_path, "--connections", "1")
    with typing(*arguments) as process:
        server.await_sent(20_000_000)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "run the same command again to resume" in err
    assert "Traceback" not in err
    assert not (tmp_path / "a.bin").exists()
    kept = (tmp_path / ".a.bin.part").stat().st_size
    assert kept
    server.always(Behaviour())
    before = len(server.requests)
    code, out, _ = typed(*arguments)
    assert (code, (tmp_path / "a.bin").read_bytes() == BODY) == (0, True)
    assert ", resumed at " in out
    assert [request.start for request in server.requests[before:] if request.method == "GET"] == [kept]


def test_on_a_terminal_there_is_a_bar_and_in_a_pipe_there_are_lines(
    server: Misbehaving, tmp_path: Path
) -> None:
    server.always(Behaviour(rate=15_000_000))
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [OUTLAST, "data", "fetch", server.url("/a.bin"), "--to", str(tmp_path), "--connections", "1"],
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        # Reading ends with an error when the last process has closed the terminal.
        with contextlib.suppress(OSError):
            while block := os.read(ours, 65536):
                shown += block
        assert process.wait(PATIENCE) == 0
    finally:
        os.close(ours)
    text = shown.decode()
    for word in ("━", " of 30 MB (", "MB/s", " left", "from %s" % server.url("/a.bin")):
        assert word in text
    code, out, err = typed("data", "fetch", server.url("/a.bin"), "--to", tmp_path / "again")
    assert (code, "━" in out + err, "\x1b" in out + err) == (0, False, False)


@contextlib.contextmanager
def _silent_server() -> Iterator[str]:
    """Yield the address of a socket that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield "127.0.0.1:%d" % listening.getsockname()[1]


def _interrupt_when_shown(process: subprocess.Popen[bytes], terminal: int, parts: list[str]) -> str:
    """Send Ctrl-C when the terminal has shown all parts; return everything that it has shown."""
    shown, until = "", time.monotonic() + PATIENCE
    with contextlib.suppress(OSError):  # the end of what the last process writes to a terminal
        while select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
            if parts and all(part in shown for part in parts):
                process.send_signal(signal.SIGINT)
                parts = []
    return shown


@pytest.mark.parametrize("error", ["refused", "silent", "busy", "no address"])
def test_on_a_terminal_an_error_is_shown_with_a_countdown_and_ctrl_c_ends_it(
    error: str, server: Misbehaving, tmp_path: Path
) -> None:
    server.always(Behaviour(status=503, headers=(("Retry-After", "30"),)))
    with _silent_server() as gone:
        pass
    ours, theirs = pty.openpty()
    with _silent_server() as silent:
        url, sentence = {
            "refused": ("http://%s/a.bin" % gone, "connection refused by %s" % gone),
            "silent": ("http://%s/a.bin" % silent, "no new bytes; "),
            "busy": (server.url("/a.bin"), "responds with 503 Service Unavailable, and asks to wait 30 s"),
            "no address": ("http://nowhere.invalid/a.bin", "no address for nowhere.invalid: "),
        }[error]
        process = subprocess.Popen(
            [OUTLAST, "data", "fetch", url, "--to", str(tmp_path)],
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        )
        os.close(theirs)
        try:
            due = [] if error == "silent" else ["next try in "]
            shown = _interrupt_when_shown(process, ours, [sentence, *due, "giving up in 9 min 5"])
            assert process.wait(PATIENCE) == 130, shown[-2000:]
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(ours)
    assert "interrupted at 0 B; run the same command again to resume" in shown
    assert max(map(len, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).splitlines())) <= 80


def test_a_token_of_the_profile_is_used_and_never_shown(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    experiment = tmp_path / "experiment"
    experiment.mkdir()
    token = tmp_path / "token"
    token.write_text("hunter2")
    token.chmod(0o600)
    (experiment / "clusters.yaml").write_text("local: {token: {file: %s, hosts: 127.0.0.1}}\n" % token)
    with Misbehaving({"/a.bin": BODY}, authority.issue()) as server:
        (experiment / "params.yaml").write_text("command: sh -c true\ndata: [%s]\n" % server.url("/a.bin"))
        trust = {"SSL_CERT_FILE": str(authority.bundle)}
        shown = [typed("data", part, experiment, **trust) for part in ("check", "pin", "check")]
        shown += [typed("check", experiment), typed("submit", "--dry-run", experiment)]
        assert {request.headers.get("authorization") for request in server.requests} == {"Bearer hunter2"}
    assert [code for code, _, _ in shown] == [0] * 5
    assert "ok, with a token" in shown[0][1]
    assert "hunter2" not in "".join(out + err for _, out, err in shown)
    assert "hunter2" not in (experiment / "params.yaml").read_text()
    assert hashlib.sha256(BODY).hexdigest() in (experiment / "params.yaml").read_text()


def test_submit_shows_how_data_gets_into_the_jobs(tmp_path: Path) -> None:
    (tmp_path / "own.csv").touch()
    (tmp_path / "params.yaml").write_text("command: sh -c true\ndata: [own.csv]\ncluster: slurm\n")
    code, _, err = typed("submit", tmp_path, PATH="/nowhere")
    assert code == 0
    assert "data: own.csv: method shared: it is read in place: jobs of Slurm see" in err
