"""Requests on every real cluster: all are answered, though a job and the gateway are killed meanwhile.

`make test` sends a few; OUTLAST_GATEWAY_REQUESTS sets another number.
"""

from __future__ import annotations

import os

import pytest

from contract.scheduler_harness import SchedulerHarness
from outlast.schedulers.base import JobPhase, JobView
from support.broker import Broker, until
from support.gateway_lab import GatewayLab, gateway_lab

REQUESTS = int(os.environ.get("OUTLAST_GATEWAY_REQUESTS", "5"))
#: Seconds for all of them: a cluster of two slots starts a job every few seconds.
PATIENCE = 240.0 + 20 * REQUESTS


@pytest.mark.slow
def test_every_request_is_answered_though_a_job_and_the_gateway_are_killed(
    cluster: SchedulerHarness, broker: Broker
) -> None:
    with gateway_lab(broker) as lab:
        lab.write_template("fast", params={"cluster": "here"}, clusters={"here": dict(cluster.profile_keys)})
        process = lab.up()
        application = lab.application()
        numbers = {"id-%d" % number: number for number in range(REQUESTS)}
        for id, number in numbers.items():
            application.request(id, number=number, seconds=600)
        job = running_job(cluster, lab)
        cluster.kill_without_warning(job.token)
        lab.kill(process)
        process = lab.up()
        lab.release.touch()
        application.wait_for_answers(PATIENCE, lab.log)
        lab.until_all_answered()
        lab.assert_answered_once(application, numbers, doubled=0)
        lab.stop(process)


def running_job(cluster: SchedulerHarness, lab: GatewayLab) -> JobView:
    """Wait until the training of a request has begun, and return its job."""
    # The file is there before its first line.
    until(lambda: lab.starts.exists() and "\n" in lab.starts.read_text(), lab.log, PATIENCE)
    token = lab.starts.read_text().split()[2]
    cluster.watch(lab.directory.experiment("fast"), lab.lab.clusters)

    def find() -> JobView | None:
        view = cluster.scheduler.poll().get(token)
        return view if view is not None and view.phase is JobPhase.RUNNING else None

    found: JobView = until(find, lab.log, PATIENCE)
    return found
