"""Names of hosts and sites end in requests to schedulers: one that could be more than a name is left out."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.schedulers.htcondor.job_history import Event, apply_event, start_history
from outlast.schedulers.htcondor.listing import history_from_ad
from outlast.schedulers.sge.listing import parse_qacct, parse_qstat
from outlast.schedulers.sge.views import view_of_ended, view_of_listed
from outlast.schedulers.slurm.listing import parse_sacct, parse_squeue
from outlast.schedulers.slurm.views import build_views
from support import sge_output

UNSAFE = pytest.mark.parametrize(
    "name", ['a"}) or true', "a'b", "n[1-4]", "a b", "a$(x)", "a\\b", "-n", "a)(b"]
)
SAFE = pytest.mark.parametrize("name", ["n1", "SU-ITS_CE3.edu", "slot1@node"])


def slurm_hosts(name: str) -> list[str]:
    squeue = "7|1|RUNNING|0|0|%s|1794785937|1794785939|0:02|None|train.g.b7|\n" % name
    sacct = "7_1|COMPLETED|0:0|%s|1794785937|1794785939|2||train.g.b7\n" % name
    return [
        build_views(parse_squeue(squeue, "g"), [])["b7-1"].host,
        build_views([], parse_sacct(sacct, "g"))["b7-1"].host,
    ]


def grid_engine_hosts(name: str) -> list[str]:
    escaped = name.replace("&", "&amp;").replace("<", "&lt;")
    listed = parse_qstat(sge_output.listing_xml(sge_output.job_xml(6, "r", "1", queue="main.q@" + escaped)))
    ended = parse_qacct(sge_output.record(hostname=name))
    return [view_of_listed("t-1", listed, {}, "group").host, view_of_ended("t-1", ended).host]


def htcondor_hosts(name: str) -> list[str]:
    history = start_history(Event(0, 0.0, {"LogNotes": "b-1"}), "7.0")
    assert history is not None
    facts: dict[str, Any] = {"GLIDEIN_ResourceName": name}
    ad = {"OutlastToken": "b-1", "ClusterId": 3, "ProcId": 1, "JobStatus": 2}
    return [
        apply_event(history, Event(1, 1.0, facts)).view().host,
        apply_event(history, Event(1, 1.0, {"ExecuteProps": facts})).view().host,
        history_from_ad({**ad, "MachineAttrGLIDEIN_ResourceName0": name}).view().host,
    ]


@UNSAFE
def test_no_scheduler_lists_a_host_whose_name_is_more_than_a_name(name: str) -> None:
    found = [*slurm_hosts(name), *grid_engine_hosts(name), *htcondor_hosts(name)]
    assert found == [""] * 7


@SAFE
def test_every_scheduler_lists_the_names_of_its_hosts(name: str) -> None:
    found = [*slurm_hosts(name), *grid_engine_hosts(name), *htcondor_hosts(name)]
    assert found == [name] * 7
