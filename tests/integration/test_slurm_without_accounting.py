"""A real Slurm without accounting, which knows only the last start of a requeued job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.experiment_runs import ClusterExperiment
from contract.slurm_harness import SlurmHarness
from outlast.domain.ledger import Use, book
from support.experiments import Lab, open_journal

pytestmark = pytest.mark.slow


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmHarness]:
    harness = SlurmHarness(tmp_path)
    yield harness
    harness.close()


def test_the_time_of_all_starts_of_a_job_is_booked(slurm: SlurmHarness, lab: Lab, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    sacct = programs / "sacct"
    sacct.write_text("#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n")
    sacct.chmod(0o755)
    experiment = ClusterExperiment(slurm, lab)
    lab.environment["PATH"] = "%s:%s" % (programs, lab.environment["PATH"])
    experiment.write("python", "train.py", "60", "0.1", "0")
    process = lab.start("run", experiment.directory)
    experiment.wait_for_step(20)
    slurm.preempt(experiment.running_job().token)
    experiment.finish(process)
    (attempt,) = experiment.attempts()
    logged = [leg.logged for leg in experiment.legs()]
    assert len(logged) == 2 and min(logged) > 1.0
    # Slurm counts whole seconds.
    assert attempt.account.slot_seconds >= sum(logged) - 1.0
    with open_journal(experiment.directory) as journal:
        run = journal.run("train")
        assert run is not None
        (booking,) = book(run, [attempt])
    assert sum(booking.uses.values()) == pytest.approx(booking.slot, abs=0.001)
    assert booking.uses[Use.USEFUL] == pytest.approx(6.0, abs=3.0)
