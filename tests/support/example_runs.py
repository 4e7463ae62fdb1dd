"""Examples that train with torch, at small scale: alone as a script, and as an experiment that is hurt."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from outlast.exchange.experiment import Experiment
from outlast.templates import templates
from support.experiments import PATIENCE, Lab, open_journal

#: Of the same Python as this one, and with one thread: the number of threads changes the bits.
ENVIRONMENT = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}


def start(example: str, folder: Path, script: str, *words: str | Path) -> subprocess.Popen[str]:
    """A script of the example in a folder of its own, without a job."""
    folder.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")}
    return subprocess.Popen(
        [sys.executable, templates()[example] / script, *words],
        cwd=folder,
        env={**environment, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code, and all that it said."""
    try:
        out, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out


def make(lab: Lab, example: str, changes: Mapping[str, str], here: Mapping[str, Any] | None = None) -> Path:
    """The example as `outlast init` makes it; lines of params.yaml that begin so are replaced by others.

    `here` is the profile of the cluster `here`.
    """
    directory = lab.root / example
    lab.environment.update(ENVIRONMENT)
    made = lab.outlast("init", directory, "--example", example)
    assert made.returncode == 0, made.output
    text = (directory / "params.yaml").read_text(encoding="utf-8")
    for beginning, line in changes.items():
        text, count = re.subn(r"(?m)^%s.*$" % re.escape(beginning), line, text, count=1)
        assert count, "params.yaml has no line that begins with %r" % beginning
    (directory / "params.yaml").write_text(text, encoding="utf-8")
    if here is not None:
        (directory / "clusters.yaml").write_text(json.dumps({"here": here}) + "\n", encoding="utf-8")
    checked = lab.outlast("check", directory)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.output
    return directory


def bring_to_its_end(lab: Lab, directory: Path, troubles: Sequence[str]) -> list[str]:
    """Run it, with one trouble (`kill`, `evict`) for each attempt that has saved; how the attempts ended."""
    run = lab.start("run", directory)
    generation = 0
    for trouble in troubles:
        generation = lab.until(
            "a checkpoint of a new attempt", partial(_generation_after, directory, generation)
        )
        hurt = lab.outlast("local", trouble, lab.running_job(directory).job)
        assert hurt.returncode == 0, hurt.output
    ended = lab.finish(run)
    assert ended.returncode == 0, ended.output
    with open_journal(directory) as journal:
        return [one.outcome.value for one in journal.attempts() if one.outcome is not None]


def _generation_after(directory: Path, generation: int) -> int:
    """That of the newest checkpoint if it is a newer one, or 0; each attempt has one of its own."""
    found = Experiment(directory).checkpoints(directory.name).glob("step-*")
    newest = max((int(path.name.split("-")[2].removeprefix("g")) for path in found), default=0)
    return newest if newest > generation else 0


def result(directory: Path) -> Path:
    return Experiment(directory).result(directory.name)


def metrics(folder: Path) -> Any:
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def weights(model: Path) -> dict[str, str]:
    """What each is, and the digest of its bits."""
    import torch

    loaded = torch.load(model, weights_only=True)
    return {
        name: "%s %s %s" % (one.dtype, list(one.shape), sha256(one.numpy().tobytes()).hexdigest())
        for name, one in loaded.items()
    }
