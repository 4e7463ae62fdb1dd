"""The lines of a job's script that run the training in a container, executed by a real shell.

The container program is a fake that records its arguments and then runs a given line.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.node.protocol import EXIT_NOT_PREPARED
from outlast.schedulers.base import JobRequest
from outlast.schedulers.job_script import exec_node_program
from outlast.schedulers.profile import Profile

APPTAINER = """\
#!/bin/bash
printf '%%s\\n' "$@" '' >>%(record)s
%(then)s
"""


class Node:
    """A machine whose PATH has the shell's own commands and, once installed, a container program."""

    def __init__(self, top: Path) -> None:
        self.top, self.record = top, top / "record"
        self.experiment = top / "my: experiment, final"
        self.image = top / "image.sif"
        self.image.touch()
        (top / "bin").mkdir()
        self.err = ""

    def install(self, name: str = "apptainer", then: str = "exit 0") -> None:
        program = self.top / "bin" / name
        program.write_text(APPTAINER % {"record": self.record, "then": then})
        program.chmod(0o755)

    def run(self, profile: Profile, gpus: int = 0, **variables: str) -> int:
        request = JobRequest(
            token="t-1",
            name="t",
            order=str(self.experiment / "params" / "t" / "order.json"),
            zipapp=str(self.experiment / "params" / "outlast.pyz"),
            log=str(self.experiment / "logs" / "t.log"),
            cpus=1,
            gpus=gpus,
            memory=1,
            disk=1,
            time=1.0,
            grace=1.0,
        )
        script = "\n".join(["order=the-order", *exec_node_program(profile, [request])])
        done = subprocess.run(
            ["/bin/bash", "-c", script],
            env={"PATH": str(self.top / "bin"), **variables},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        self.err = done.stderr
        return done.returncode

    def calls(self) -> list[list[str]]:
        """Return the arguments of each call of the container program."""
        return [call.split("\n") for call in self.record.read_text().removesuffix("\n\n").split("\n\n")]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_node_program_runs_in_an_image_that_was_tested_and_sees_the_experiment(node: Node) -> None:
    node.install(then='[ "${@: -1}" = pass ] || exit 85')
    assert node.run(Profile(container=str(node.image), python="python3.12")) == 85
    seen = str(node.experiment).replace(":", "\\:").replace(",", "\\,")
    inside = ["exec", "--bind", seen, str(node.image), "python3.12"]
    program = str(node.experiment / "params" / "outlast.pyz")
    assert node.calls() == [[*inside, "-c", "pass"], [*inside, program, "the-order"]]


def test_a_container_gets_the_gpus_of_the_node_if_some_were_requested(node: Node) -> None:
    node.install()
    for gpus in (0, 2):
        node.run(Profile(container=str(node.image)), gpus)
    assert ["--nv" in arguments for arguments in node.calls()] == [False, False, True, True]


@pytest.mark.parametrize("key", ["scratch", "token_file"])
def test_paths_of_the_profile_are_visible_in_a_container_if_they_exist(node: Node, key: str) -> None:
    node.install()
    profile = replace(Profile(container=str(node.image)), **{key: "$PLACE"})
    node.run(profile, PLACE=str(node.top))
    node.run(profile, PLACE=str(node.top / "none"))
    assert [arguments.count("--bind") for arguments in node.calls()] == [2, 2, 1, 1]
    assert str(node.top) in node.calls()[0]


def test_a_cache_is_created_outside_so_that_a_container_sees_it(node: Node) -> None:
    node.install()
    profile = Profile(container=str(node.image), cache="$PLACE/data/cache")
    assert node.run(profile, PLACE=str(node.top), PATH="%s/bin:/bin:/usr/bin" % node.top) == 0
    assert (node.top / "data" / "cache").is_dir() and str(node.top / "data" / "cache") in node.calls()[1]


def test_singularity_is_used_if_there_is_no_apptainer(node: Node) -> None:
    node.install("singularity")
    assert node.run(Profile(container="docker://python:3.12")) == 0
    assert node.calls()[0][-4:] == ["docker://python:3.12", "python3", "-c", "pass"]


def test_a_node_without_a_container_program_is_reported(node: Node) -> None:
    assert node.run(Profile(container=str(node.image))) == EXIT_NOT_PREPARED
    assert "before the training: container: neither apptainer nor singularity is on the PATH" in node.err


def test_an_image_that_does_not_exist_is_named(node: Node) -> None:
    node.install()
    assert node.run(Profile(container="$HERE/none.sif"), HERE="/nowhere") == EXIT_NOT_PREPARED
    assert "before the training: container /nowhere/none.sif does not exist" in node.err
    assert not node.record.exists()


def test_an_image_that_cannot_be_used_fails_with_the_message_of_the_container_program(node: Node) -> None:
    node.install(then="echo 'FATAL: no python3 in this image' >&2; exit 255")
    assert node.run(Profile(container=str(node.image))) == EXIT_NOT_PREPARED
    assert "FATAL: no python3" in node.err and "before the training: container: " in node.err
    assert len(node.calls()) == 1
