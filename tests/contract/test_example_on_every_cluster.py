"""An example that trains with torch, as a user gets it, on each cluster: killed there, it ends the same."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

import pytest

from contract.experiment_runs import Play
from contract.htcondor_harness import HTCondorRehearsal
from contract.sge_harness import SgeRehearsal
from contract.slurm_harness import SlurmRehearsal
from outlast.templates import templates
from support import clusters
from support.example_runs import finish, make, metrics, result, start, weights

if "CI" in os.environ:
    import torch  # noqa: F401 - in CI nothing may be left out
else:
    pytest.importorskip("torch")

#: On the local one there is a test of each example.
REAL = (SlurmRehearsal, SgeRehearsal, HTCondorRehearsal)
ARCHIVE = templates()["cifar10"] / "cifar-10-python.tar.gz"
SMALL = "--epochs 8 --batch-size 32 --width 8"


def with_torch(cluster: str) -> dict[str, str]:
    """What the profile says, so that a job's `python` has torch."""
    if cluster != "htcondor":
        return {"environment": sys.prefix}
    # Its jobs run as nobody, who may not reach a Python in a home, but the machine's own of the same version.
    version = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2])"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout.split()
    if version != [str(number) for number in sys.version_info[:2]]:
        clusters.not_here(
            "/usr/bin/python3 is of version %s, and torch is for %s" % (".".join(version), sys.version)
        )
    return {"before": "export PYTHONPATH=%s" % sysconfig.get_path("purelib")}


@pytest.mark.parametrize("cluster", REAL, ids=lambda one: one.name, indirect=True)
def test_cifar10_killed_on_the_cluster_ends_with_the_weights_of_an_undisturbed_training(play: Play) -> None:
    cluster = play.cluster
    alone = play.lab.root / "alone"
    undisturbed = start("cifar10", alone, "cifar10_resnet.py", "--data", ARCHIVE, *SMALL.split())
    changes = {
        "command:": "command: python cifar10_resnet.py " + SMALL,
        "cluster:": "cluster: here",
        "  time:": "  time: 5min",
        "  grace:": "  every: 0.3s",
        "    at_least:": "    at_least: 0.5",
    }
    play.directory = make(play.lab, "cifar10", changes, {**cluster.profile_keys, **with_torch(cluster.name)})
    cluster.watch(play.directory, play.lab.clusters)
    process = play.lab.start("run", play.directory)

    def half_of_it_is_done() -> bool:
        return any("\nepoch 4 of" in log.read_text(errors="replace") for log in cluster.logs(play.directory))

    play.until("the end of the fourth epoch", half_of_it_is_done)
    cluster.kill_without_warning(play.view().token)
    play.conclude(process)
    code, said = finish(undisturbed)
    assert code == 0, said
    legs = play.legs()
    assert len(legs) == 2 and legs[1].resumed > 0
    found = result(play.directory)
    assert weights(found / "cifar10_resnet.pt") == weights(alone / "cifar10_resnet.pt")
    assert metrics(found) == metrics(alone)
    play.assert_nothing_is_left()
