"""Which room may import which: one table for all rooms, and CONTRIBUTING.md shows the same table.

A room is a directory below `src/outlast`; a module beside the rooms counts as a room of its own. After a
change of `RULES`, `python tests/unit/test_import_rules.py` prints the block for CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "outlast"

#: The rooms that a room may import, besides itself. "standard library" is always allowed.
RULES: Mapping[str, str] = {
    # The compute node's side: Python 3.8, standard library, nothing from outside.
    "node": "node/diagnosis node/outputs node/sandbox node/snapshots node/staging",
    "node/diagnosis": "node",
    "node/outputs": "node",
    "node/sandbox": "node",
    "node/snapshots": "node",
    "node/archives": "node",
    "node/staging": (
        "node node/archives node/staging/cache node/staging/fetch node/staging/http node/staging/sources"
    ),
    "node/staging/cache": "node node/archives node/staging node/staging/fetch node/staging/sources",
    "node/staging/fetch": "node node/archives node/staging node/staging/http node/staging/sources",
    "node/staging/sources": "node node/staging node/staging/http",
    "node/staging/http": "node/staging",
    "data": "node/archives",
    "training": "training/checkpoints",
    "training/checkpoints": "training",
    "frameworks": "outlast training training/checkpoints",
    # Beside the rooms.
    "outlast": "training",
    "__main__": "cli",
    "errors": "",
    "filesystem": "node",
    "job_environment": "",
    "text": "",
    "units": "node",
    "untrusted_files": "",
    # The pure core: no clock, no file, no randomness.
    "domain": "node node/staging text units",
    # Around it.
    "journal": "outlast domain errors filesystem local_cluster node/staging text",
    "schedulers": (
        "domain errors job_environment local_cluster node node/staging schedulers/htcondor "
        "schedulers/sge schedulers/slurm text units"
    ),
    "schedulers/slurm": "domain job_environment node schedulers",
    "schedulers/sge": "domain node schedulers",
    "schedulers/htcondor": "domain errors filesystem node node/sandbox node/staging schedulers",
    "spec": (
        "domain errors local_cluster node node/sandbox node/staging node/staging/fetch "
        "node/staging/http node/staging/sources schedulers text units"
    ),
    "exchange": (
        "domain errors filesystem node node/outputs node/sandbox node/snapshots node/staging "
        "node/staging/sources schedulers spec training training/checkpoints"
    ),
    "controller": "domain errors exchange filesystem job_environment journal node schedulers spec units",
    "local_cluster": "outlast errors filesystem job_environment node",
    "simulation": "controller domain exchange journal node schedulers",
    "demo": "domain errors exchange node schedulers templates training/checkpoints",
    "demo/gateway": (
        "demo domain errors exchange gateway gateway/broker gateway/record gateway/requester journal outlast "
        "text units"
    ),
    "templates": "outlast errors spec",
    # The front door: requests from a message broker.
    "gateway": (
        "controller domain errors exchange filesystem gateway/answers gateway/broker "
        "gateway/configuration gateway/message_formats gateway/monitoring gateway/planning gateway/record "
        "gateway/web_application journal node/staging spec text"
    ),
    "gateway/answers": (
        "exchange filesystem gateway gateway/message_formats gateway/record gateway/web_application node "
        "node/staging/http text units"
    ),
    "gateway/broker": "errors gateway gateway/message_formats gateway/requester text",
    "gateway/configuration": "errors filesystem gateway node/staging/http spec templates units",
    "gateway/message_formats": "gateway text units",
    "gateway/monitoring": (
        "errors filesystem gateway/broker gateway/configuration gateway/record outlast text units"
    ),
    "gateway/planning": (
        "domain gateway gateway/configuration gateway/web_application node/staging node/staging/http spec "
        "text units"
    ),
    "gateway/record": "errors filesystem gateway journal",
    "gateway/requester": "errors filesystem gateway gateway/message_formats text",
    "gateway/web_application": (
        "errors filesystem gateway gateway/configuration node/staging node/staging/http text units"
    ),
    # The command line may import everything; nobody imports it.
    "cli": "*",
    "cli/commands": "*",
    "cli/commands/gateway_commands": "*",
}
COMMAND_LINE = {"cli", "cli/commands", "cli/commands/gateway_commands"}
#: Rooms that every room but the pure core may import, like the standard library.
EVERYWHERE = "untrusted_files"
#: What `domain` must not import: it would see a clock, a file, chance or the network.
IMPURE = {
    "asyncio",
    "datetime",
    "io",
    "os",
    "pathlib",
    "random",
    "secrets",
    "shutil",
    "socket",
    "sqlite3",
} | {*("subprocess", "sys", "tempfile", "threading", "time", "uuid")}


def _room(module: str) -> str:
    """Return the room of a module such as `outlast.node.main`."""
    parts, place, room = module.split(".")[1:], PACKAGE, []
    for part in parts:
        if not (place / part).is_dir():
            break
        place /= part
        room.append(part)
    return "/".join(room) or (parts[0] if parts else "outlast")


def _modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(("outlast", *(part for part in parts if part != "__init__"))), path


def _imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, at its top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which room they lead to"
            module = node.module or ""
            for alias in node.names:
                inner = PACKAGE.parent / Path(*f"{module}.{alias.name}".split("."))
                is_module = inner.is_dir() or inner.with_suffix(".py").is_file()
                yield f"{module}.{alias.name}" if is_module else module


MODULES = dict(_modules())
ROOMS = sorted({_room(module) for module in MODULES})


def test_every_room_has_its_rule_and_every_rule_its_room() -> None:
    named = {room for rooms in RULES.values() for room in rooms.split() if room != "*"}
    assert sorted(RULES) == ROOMS
    assert named <= set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_that_its_rule_names(room: str) -> None:
    allowed = {room, *RULES[room].split(), *(EVERYWHERE.split() if room != "domain" else ())}
    wrong = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if _room(module) == room and "*" not in allowed
        for name in _imported(path)
        if name.split(".")[0] == "outlast" and _room(name) not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize("room", sorted(set(ROOMS) - {*COMMAND_LINE, "__main__"}))
def test_no_room_imports_the_command_line(room: str) -> None:
    assert not {*COMMAND_LINE, "*"} & set(RULES[room].split())


def test_the_core_is_pure() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if _room(module) == "domain"
        for name in _imported(path)
        if name.split(".")[0] in IMPURE
    ]
    assert not wrong


def test_one_scheduler_does_not_know_another() -> None:
    for scheduler in ("slurm", "sge", "htcondor"):
        others = {f"schedulers/{other}" for other in ("slurm", "sge", "htcondor")} - {
            f"schedulers/{scheduler}"
        }
        assert not others & set(RULES[f"schedulers/{scheduler}"].split())


def test_no_room_has_too_many_modules() -> None:
    sizes = {room: sum(_room(module) == room for module in MODULES) for room in ROOMS}
    assert {room: size for room, size in sizes.items() if size > 27} == {}


def block() -> str:
    """Return the rules as they stand in CONTRIBUTING.md."""
    width = max(map(len, RULES)) + 2
    lines = [
        f"{room:{width}}{rooms if rooms != '*' else '(everything)'}".rstrip() for room, rooms in RULES.items()
    ]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def test_contributing_shows_these_rules() -> None:
    assert block() in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), (
        "run this file to print the block"
    )


if __name__ == "__main__":
    sys.stdout.write(block())
