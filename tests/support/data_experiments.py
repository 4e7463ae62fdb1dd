"""Trainings that look at their data: what servers have for them, and what they found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outlast.exchange.experiment import Experiment
from servers.behaviour import seeded
from support.experiments import Lab

#: A training whose one output says what is in its data directory.
LOOK = """\
import hashlib, json, os

top, found = os.environ["OUTLAST_DATA_DIR"], {}
for place, _, names in os.walk(top, followlinks=True):
    for name in names:
        path = os.path.join(place, name)
        with open(path, "rb") as file:
            found[os.path.relpath(path, top)] = hashlib.sha256(file.read()).hexdigest()
with open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "found.json"), "w") as file:
    json.dump(found, file)
"""
#: The keys of params.yaml that go with it.
LOOKING: Mapping[str, Any] = {"command": "python3 look.py", "outputs": ["found.json"]}
FILES = {"look.py": LOOK}

#: What is in a nested archive, by the path it is unpacked to.
CLASSES = {"%s/%d.img" % (name, i): seeded(30_000, i) for name in ("cat", "dog") for i in range(3)}


def local_experiment(
    lab: Lab, data: Sequence[Any], profile: Mapping[str, Any], files: Mapping[str, str] = FILES, **params: Any
) -> Path:
    """One on a local cluster of this profile, whose trainings look at their data."""
    directory = lab.experiment("e", files, **{**LOOKING, "cluster": "here", "data": list(data), **params})
    told = {"here": {"scheduler": "local", **profile}}
    (directory / "clusters.yaml").write_text(json.dumps(told) + "\n")
    return directory


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: sha256(content) for name, content in files.items()}


def found(directory: Path, run: str) -> dict[str, str]:
    """What the training of this run has seen."""
    told: dict[str, str] = json.loads(Experiment(directory).result(run).joinpath("found.json").read_text())
    return told
