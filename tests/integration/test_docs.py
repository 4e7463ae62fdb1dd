"""The documentation, carried out: what it tells people to type works, and shows what it says it shows.

In every page below `docs/`:

- a `console` block is typed: lines that begin with `$ ` are commands, the lines below one are what it must
  print, where `…` stands for anything (alone on a line, for any number of lines). No lines: anything.
  A command must exit with 0, unless the next one is `$ echo $?`, which then shows the code;
- a `python`, `yaml` or `sh` block whose first line is a comment with a file's name is that file, written
  where the commands above it have gone to;
- a `params.yaml` must be one that `outlast check` finds no fault with, and Python must compile.

A page with a block `gateway.yaml` has a real broker, with the user `guest`: `host: localhost` and
`ConnectionParameters("localhost")` in its files get the port and the virtual host of that one. The
`params.yaml` of a page with a `template.yaml` is checked by the page's own `outlast gateway check`.

All commands of a page are typed into one shell, in a directory and with local clusters of its own. What must
not be run is in a `text` block.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outlast import spec
from outlast.schedulers.local import LocalScheduler
from support.broker import Broker, shared_broker

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
#: Nothing takes this long that goes well, on a busy machine neither.
PATIENCE = 120.0
END = "--outlast-docs-end--"

_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# ([\w.-]+\.(?:py|sh|yaml))")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `line` is that of its first line of content."""

    kind: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        first = _FILE_NAME.fullmatch(self.text.split("\n", 1)[0].strip())
        return first[1] if first and self.kind in ("python", "yaml", "sh") else None


@dataclass(frozen=True)
class Command:
    text: str
    expected: list[str]
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start()) + 2) for match in _FENCE.finditer(text)
    ]


def commands(block: Block) -> list[Command]:
    found: list[Command] = []
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        if line.startswith("$ "):
            found.append(Command(line[2:], [], number))
        else:
            assert found, "line %d: output before the first command" % number
            found[-1].expected.append(line.rstrip())
    return found


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def with_blocks(*kinds: str) -> list[Path]:
    return [page for page in PAGES if any(block.kind in kinds for block in blocks(page))]


@dataclass(frozen=True)
class Desk:
    """A place to type commands: a directory, and local clusters that nobody else has."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
        # The commands of this very installation, wherever the tests are called from.
        path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
        places = {"OUTLAST_LOCAL_ROOT": "c", "XDG_CONFIG_HOME": "config", "XDG_STATE_HOME": "state"}
        return {**kept, "PATH": path, **{name: str(self.root / place) for name, place in places.items()}}

    @property
    def work(self) -> Path:
        return self.root / "w"

    def type(self, script: str) -> str:
        """What a shell prints that carries this script out; it is ended with all it started."""
        file = self.root / "page.sh"
        file.write_text(script, encoding="utf-8")
        shell = subprocess.Popen(
            ["bash", str(file)],
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            printed, _ = shell.communicate(timeout=PATIENCE)
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
        return printed.decode("utf-8", "replace")

    def close(self) -> None:
        clusters = self.root / "c"
        for place in clusters.iterdir() if clusters.is_dir() else ():
            LocalScheduler("docs", name=place.name, root=clusters).stop(force=True)
        shutil.rmtree(self.root, ignore_errors=True)


@pytest.fixture
def desk() -> Iterator[Desk]:
    # Short: examples print paths, and a Unix socket lies in it.
    place = Desk(Path(tempfile.mkdtemp(prefix="ol-docs-")))
    place.work.mkdir()
    try:
        yield place
    finally:
        place.close()


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[Broker | None]:
    """A broker as a newly installed one, if the page is about a gateway."""
    if not any(block.file == "gateway.yaml" for block in blocks(request.getfixturevalue("page"))):
        yield None
        return
    with shared_broker().own_virtual_host() as ours:
        ours.api("PUT", "users/guest", {"password": "guest", "tags": ""})
        ours.permit("guest", ".*", ".*", ".*")
        yield ours


def with_broker(text: str, broker: Broker | None) -> str:
    """The text of a file, with this broker in place of the one on the usual port."""
    if broker is None:
        return text
    place = (broker.port, broker.virtual_host)
    text = text.replace("host: localhost", "host: localhost, port: %d, virtual_host: %s" % place)
    return text.replace(
        'ConnectionParameters("localhost")', 'ConnectionParameters("localhost", %d, "%s")' % place
    )


def script_of(page: Path, broker: Broker | None = None) -> tuple[str, list[Command]]:
    """A page as one shell script, which prints a line with the exit code after each command."""
    lines: list[str] = []
    typed: list[Command] = []
    for block in blocks(page):
        if block.file:
            lines.append(
                "cat > %s <<'%s'\n%s%s" % (shlex.quote(block.file), END, with_broker(block.text, broker), END)
            )
        elif block.kind == "console":
            for command in commands(block):
                typed.append(command)
                lines.append(command.text)
                # The code is handed on, so that `echo $?` shows it.
                lines.append("docs_code=$?; echo; echo '%s'\" $docs_code\"; (exit $docs_code)" % END)
    return "\n".join(lines) + "\n", typed


def pattern_of(expected: list[str]) -> str:
    parts = []
    for line in expected:
        if line.strip() == "…":
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            parts.append(r"[^\n]*".join(re.escape(part) for part in line.split("…")) + r"[ ]*\n")
    return "".join(parts)


@pytest.mark.parametrize("page", with_blocks("console"), ids=named)
def test_what_a_page_tells_to_type_works_and_prints_what_it_shows(
    page: Path, desk: Desk, broker: Broker | None
) -> None:
    script, typed = script_of(page, broker)
    printed = desk.type(script)
    parts = re.split(r"\n%s (\d+)\n" % END, printed)
    outputs, codes = parts[:-1:2], [int(code) for code in parts[1::2]]
    assert len(codes) == len(typed), "%s ended early:\n%s" % (named(page), printed)
    for index, (command, output) in enumerate(zip(typed, outputs, strict=True)):
        place = "%s:%d: $ %s" % (named(page), command.line, command.text)
        shown_next = index + 1 < len(typed) and typed[index + 1].text.strip() == "echo $?"
        assert codes[index] == 0 or shown_next, "%s\nexits with %d:\n%s" % (place, codes[index], output)
        if command.expected:
            text = output if output.endswith("\n") or not output else output + "\n"
            assert re.fullmatch(pattern_of(command.expected), text), "%s\nprints\n%s\ninstead of\n%s" % (
                place,
                output,
                "\n".join(command.expected),
            )


def params_blocks() -> list[Any]:
    found = []
    for page in [*PAGES, ROOT / "README.md"]:
        for block in blocks(page):
            in_readme = page.name == "README.md" and block.kind == "yaml" and "command:" in block.text
            is_template = any(other.file == "template.yaml" for other in blocks(page))
            if (block.file == "params.yaml" and not is_template) or in_readme:
                found.append(pytest.param(page, block, id="%s:%d" % (named(page), block.line)))
    return found


@pytest.mark.parametrize(("page", "block"), params_blocks())
def test_every_params_yaml_in_the_docs_has_no_mistakes(
    page: Path, block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    place = tmp_path / "experiment"
    place.mkdir()
    for name in re.findall(r"[\w./-]+\.(?:py|sh)\b", block.text):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).touch(mode=0o755)
    for name in re.findall(r"\{file: ([\w.-]+)\}", block.text):
        (place / name).touch(mode=0o600)
    for name in re.findall(r"(\w+): \{from: shell\}", block.text):
        monkeypatch.setenv(name, "x")
    for other in blocks(page):
        if other.file == "clusters.yaml":
            (place / other.file).write_text(other.text, encoding="utf-8")
    (place / "params.yaml").write_text(block.text, encoding="utf-8")
    parsed = spec.read(place)
    about_this_machine = [warning for warning in parsed.warnings if "PATH" in warning.text]
    assert [str(one) for one in parsed.warnings if one not in about_this_machine] == []


@pytest.mark.parametrize("page", [*with_blocks("python"), ROOT / "README.md"], ids=named)
def test_every_python_block_compiles(page: Path) -> None:
    for block in blocks(page):
        if block.kind == "python":
            compile("\n" * (block.line - 1) + block.text, str(page), "exec")


def keys_of(value: Any) -> set[str]:
    """All keys of a JSON value, less those that are names the user or the journal gives."""
    if isinstance(value, list):
        return set().union(*(keys_of(item) for item in value)) if value else set()
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(keys_of(item) for item in value.values()))


def test_every_key_that_a_command_prints_as_json_is_in_the_reference(desk: Desk) -> None:
    (desk.work / "params.yaml").write_text("name: one\ncommand: sh -c 'exit 3'\nresources: {time: 1min}\n")
    lines = [
        "check",
        "clusters",
        "submit",
        "tick",
        "up",
        "status",
        "explain",
        "report",
        "retry one",
        "cancel --all",
    ]
    typed = ["outlast %s --json; echo '%s'" % (line, END) for line in [*lines, "local status"]]
    printed = desk.type("\n".join(typed)).split(END + "\n")
    reference = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    missing = {}
    for line, output in zip([*lines, "local status"], printed, strict=False):
        told = json.loads(output)
        # The names of hosts are this machine's.
        told.get("hosts", {}).pop(os.uname().nodename, None)
        told.pop("sent", None)  # its keys are the names of runs
        lost = {key for key in keys_of(told) if not re.search(r'[`"]%s[`"]' % re.escape(key), reference)}
        if lost:
            missing[line] = sorted(lost)
    assert missing == {}
