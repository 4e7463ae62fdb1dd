"""`connect` returns the adapter for the profile that a run was submitted with."""

from __future__ import annotations

import pytest

from outlast.domain.model import Spec
from outlast.errors import BadInput
from outlast.schedulers import connect
from outlast.schedulers.local import LocalScheduler


def spec(**profile: object) -> Spec:
    return Spec("digits", "python train.py", cluster="farm", profile=profile)


@pytest.mark.parametrize(
    ("kind", "adapter"),
    [
        ("local", "LocalScheduler"),
        ("slurm", "SlurmScheduler"),
        ("sge", "SgeScheduler"),
        ("htcondor", "HTCondorScheduler"),
    ],
)
def test_every_scheduler_has_its_adapter_with_the_limits_of_the_profile(kind: str, adapter: str) -> None:
    if kind == "htcondor":
        pytest.importorskip("htcondor2")
    found = connect(spec(scheduler=kind, most_jobs=7, submit_rate=60, interval=90.0), "group")
    assert type(found).__name__ == adapter
    assert (found.most_jobs, found.submit_rate, found.interval) == (7, 60, 90.0)


def test_without_limits_the_adapter_has_its_own_interval() -> None:
    found = connect(spec(scheduler="local"), "group")
    assert (found.most_jobs, found.submit_rate) == (None, None)
    assert found.interval == LocalScheduler.interval


def test_the_hosts_of_a_local_cluster_are_those_of_the_profile() -> None:
    found = connect(spec(scheduler="local", hosts={"alpha": {"cpus": 2, "gpus": 1}}), "group")
    assert list(found.hosts()) == ["alpha"]


def test_an_unknown_scheduler_is_an_error_that_names_it() -> None:
    with pytest.raises(
        BadInput, match="cluster farm: this version of Outlast does not support scheduler pbs"
    ):
        connect(spec(scheduler="pbs"), "group")
