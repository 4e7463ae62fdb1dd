"""How each client is called to download one URL, and what that costs."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measuring import cost

#: Seconds for one download.
LIMIT = 300.0
CLIENT = Path(__file__).parent / "transfer_client.py"


@dataclass(frozen=True)
class Download:
    """Seconds, CPU seconds of the whole process, and for Python clients the latter without their start."""

    wall: float
    cpu: float
    cpu_without_start: float
    told: dict[str, Any] = field(default_factory=dict)


def with_python(client: str, url: str, *options: str) -> Download:
    spent = cost([sys.executable, str(CLIENT), client, url, *options], LIMIT)
    told = json.loads(spent.output.splitlines()[-1])
    return Download(spent.wall, spent.cpu, told["cpu"], told)


def with_program(*command: str) -> Download:
    spent = cost(command, LIMIT)
    return Download(spent.wall, spent.cpu, spent.cpu)


def curl(url: str, to: Path, ca: Path) -> Download:
    return with_program("curl", "-sS", "--fail", "--cacert", str(ca), "-o", str(to), url)


def aria2c(url: str, to: Path, ca: Path) -> Download:
    """One connection, as all others here."""
    quiet = ("-q", "--no-conf", "--file-allocation=none")
    replacing = ("--allow-overwrite=true", "--auto-file-renaming=false")
    where = ("-d", str(to.parent), "-o", to.name)
    return with_program("aria2c", *quiet, *replacing, *where, "-x1", "-s1", "--ca-certificate=%s" % ca, url)


def peers(ca: Path, nowhere: Path) -> dict[str, Callable[[str], Download] | None]:
    """Those who discard what they get; None for those who are not installed.

    `nowhere`: a link to /dev/null, for programs that may replace the file that they write to.
    """
    trusted = ("--ca", str(ca))
    known: dict[str, tuple[bool, Callable[[str], Download]]] = {
        "curl": (_is_program("curl"), lambda url: curl(url, nowhere, ca)),
        "pycurl": (_is_module("pycurl"), lambda url: with_python("pycurl", url, *trusted)),
        "aria2c": (_is_program("aria2c"), lambda url: aria2c(url, nowhere, ca)),
        "requests": (_is_module("requests"), lambda url: with_python("requests", url, *trusted)),
    }
    return {name: call if is_here else None for name, (is_here, call) in known.items()}


def _is_program(name: str) -> bool:
    return shutil.which(name) is not None


def _is_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
