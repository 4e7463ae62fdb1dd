"""A real Slurm that keeps no accounts: of a job that was started again, it tells the last start only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.experiment_runs import Play
from contract.slurm_harness import SlurmRehearsal
from outlast.domain.ledger import Use, book
from support.experiments import Lab, open_journal

pytestmark = pytest.mark.slow


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmRehearsal]:
    rehearsal = SlurmRehearsal(tmp_path)
    yield rehearsal
    rehearsal.close()


def test_the_time_of_all_starts_of_a_job_is_booked(slurm: SlurmRehearsal, lab: Lab, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    sacct = programs / "sacct"
    sacct.write_text("#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n")
    sacct.chmod(0o755)
    play = Play(slurm, lab)
    lab.environment["PATH"] = "%s:%s" % (programs, lab.environment["PATH"])
    play.set("python", "train.py", "60", "0.1", "0")
    process = lab.start("run", play.directory)
    play.until_step(20)
    slurm.send_away(play.view().token)
    play.conclude(process)
    (attempt,) = play.attempts()
    logged = [leg.logged for leg in play.legs()]
    assert len(logged) == 2 and min(logged) > 1.0
    # Slurm's clock ticks in seconds.
    assert attempt.account.slot_seconds >= sum(logged) - 1.0
    with open_journal(play.directory) as journal:
        run = journal.run("play")
        assert run is not None
        (booking,) = book(run, [attempt])
    assert sum(booking.uses.values()) == pytest.approx(booking.slot, abs=0.001)
    assert booking.uses[Use.USEFUL] == pytest.approx(6.0, abs=3.0)
