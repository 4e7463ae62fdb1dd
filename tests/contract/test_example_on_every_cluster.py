"""An example with torch, killed on each cluster, ends with the weights of an uninterrupted run."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

import pytest

from contract.experiment_runs import ClusterExperiment
from contract.htcondor_harness import HTCondorHarness
from contract.sge_harness import SgeHarness
from contract.slurm_harness import SlurmHarness
from outlast.templates import templates
from support import clusters
from support.example_runs import finish, make, metrics, result, start, weights

if "CI" in os.environ:
    import torch  # noqa: F401 - in CI nothing may be left out
else:
    pytest.importorskip("torch")

#: Each example has its own test on the local cluster.
REAL = (SlurmHarness, SgeHarness, HTCondorHarness)
ARCHIVE = templates()["cifar10"] / "cifar-10-python.tar.gz"
#: Long enough that the job still runs when the scheduler has been asked to kill it, also on a busy machine.
SMALL = "--epochs 16 --batch-size 32 --width 8"


def with_torch(cluster: str) -> dict[str, str]:
    """Return the profile keys by which the `python` of a job has torch."""
    if cluster != "htcondor":
        return {"environment": sys.prefix}
    # Its jobs run as nobody, who cannot use a Python in a home directory: the system's must be as new.
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
def test_cifar10_killed_on_the_cluster_ends_with_the_weights_of_an_uninterrupted_run(
    experiment: ClusterExperiment,
) -> None:
    cluster = experiment.cluster
    alone = experiment.lab.root / "alone"
    reference = start("cifar10", alone, "cifar10_resnet.py", "--data", ARCHIVE, *SMALL.split())
    changes = {
        "command:": "command: python cifar10_resnet.py " + SMALL,
        "cluster:": "cluster: here",
        "  time:": "  time: 5min",
        "  grace:": "  every: 0.3s",
        "    at_least:": "    at_least: 0.5",
    }
    experiment.directory = make(
        experiment.lab, "cifar10", changes, {**cluster.profile_keys, **with_torch(cluster.name)}
    )
    cluster.watch(experiment.directory, experiment.lab.clusters)
    process = experiment.lab.start("run", experiment.directory)

    def half_of_it_is_done() -> bool:
        return any(
            "\nepoch 4 of" in log.read_text(errors="replace") for log in cluster.logs(experiment.directory)
        )

    experiment.wait_for("the end of the fourth epoch", half_of_it_is_done)
    cluster.kill_without_warning(experiment.running_job().token)
    experiment.finish(process)
    code, output = finish(reference)
    assert code == 0, output
    legs = experiment.legs()
    assert len(legs) == 2 and legs[1].resumed > 0
    found = result(experiment.directory)
    assert weights(found / "cifar10_resnet.pt") == weights(alone / "cifar10_resnet.pt")
    assert metrics(found) == metrics(alone)
    experiment.assert_nothing_is_left()
