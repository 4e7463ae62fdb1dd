"""Experiments whose training script reports the digests of its data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outlast.exchange.experiment import Experiment
from servers.behaviour import seeded
from support.experiments import Lab

#: A training script whose one output lists the files of its data directory with their digests.
HASH_DATA = """\
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
#: The keys of params.yaml for this script.
HASH_DATA_KEYS: Mapping[str, Any] = {"command": "python3 hash_data.py", "outputs": ["found.json"]}
FILES = {"hash_data.py": HASH_DATA}

#: The content of a nested archive, by the path that it is unpacked to.
CLASSES = {"%s/%d.img" % (name, i): seeded(30_000, i) for name in ("cat", "dog") for i in range(3)}


def local_experiment(
    lab: Lab, data: Sequence[Any], profile: Mapping[str, Any], files: Mapping[str, str] = FILES, **params: Any
) -> Path:
    """Create an experiment for a local cluster with this profile, and return its directory."""
    directory = lab.experiment(
        "e", files, **{**HASH_DATA_KEYS, "cluster": "here", "data": list(data), **params}
    )
    clusters = {"here": {"scheduler": "local", **profile}}
    (directory / "clusters.yaml").write_text(json.dumps(clusters) + "\n")
    return directory


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: sha256(content) for name, content in files.items()}


def found(directory: Path, run: str) -> dict[str, str]:
    """Return the digests that the training script of this run has reported, by path."""
    digests: dict[str, str] = json.loads(Experiment(directory).result(run).joinpath("found.json").read_text())
    return digests
