"""Exchange through the experiment's own directory, on a file system that controller and nodes share."""

from __future__ import annotations

import errno
import shutil
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outlast.domain import untrusted
from outlast.domain.model import Attempt, Outcome, Run, Spec
from outlast.domain.observation import Report
from outlast.exchange.attempt_log import read_attempt
from outlast.exchange.base import ResultGone
from outlast.exchange.experiment import Experiment
from outlast.filesystem import sync_directory, write_durably
from outlast.node import claim, legs
from outlast.node.order import SaveSettings, WorkOrder
from outlast.node.outputs.delivery import deliver
from outlast.node.scratch import Scratch
from outlast.node.staging.plan import DataPlan
from outlast.schedulers.base import JobRequest
from outlast.schedulers.profile import Profile
from outlast.spec.command import arguments

#: The most characters of a delivered file's name in a message.
LONGEST_NAME = 200
#: Seconds that cleaning up after one run may delay a pass.
LONGEST_CLEANUP = 2.0


@dataclass(frozen=True)
class SharedFilesExchange:
    """The exchange of jobs that see the experiment's directory."""

    experiment: Experiment
    zipapp: Path
    site: Profile = Profile()  # noqa: RUF009 - frozen
    #: The signal that the scheduler sends before the limit, if it has one of its own.
    limit_signal: str | None = None
    #: Jobs notify the controller when they begin and end, so that it need not poll all the time.
    notifies: bool = False

    def order(self, run: Run, attempt: Attempt, spec: Spec) -> WorkOrder:
        """Return the work order of an attempt."""
        place, number, token = self.experiment, attempt.number, attempt.token
        return WorkOrder(
            token=token,
            experiment=str(place.root),
            run=run.name,
            number=number,
            command=arguments(spec.command, run.params),
            exchange=str(place.exchange_of(attempt)),
            scratch=str(place.scratch(run.name, number, token)),
            checkpoints=str(place.checkpoints(run.name)),
            log=str(place.log(run.name, number)),
            previous_scratch=self._previous_scratch(attempt),
            code=str(place.code(spec.code_sha256)) if spec.code_sha256 else None,
            code_sha256=spec.code_sha256 or None,
            zipapp=str(self.zipapp),
            outputs=spec.outputs,
            time=spec.job_time,
            grace=spec.checkpoints.grace,
            signal=spec.checkpoints.signal,
            keep=spec.checkpoints.keep,
            saving=_saving(run, spec),
            cpus=spec.resources.cpus,
            # The search paths of the login node would override those that the profile sets.
            environment={} if self.site.sets_environment else dict(spec.environment),
            limit_signal=self.limit_signal,
            jobs=attempt.jobs,
            bell=str(place.bell) if self.notifies else None,
            node_scratch=self.site.scratch or None,
            data=self.data_plan(spec),
        )

    def data_plan(self, spec: Spec) -> DataPlan:
        """Return how data gets into the jobs; without a cache in the profile, the experiment has one."""
        plan = DataPlan.at(self.site, spec.data)
        return replace(plan, cache=plan.cache or str(self.experiment.data))

    def _previous_scratch(self, attempt: Attempt) -> str | None:
        """Return the scratch directory of the last attempt that had one: its unfinished outputs are there."""
        if attempt.number == 1:
            return None
        place = self.experiment.scratch(attempt.run, attempt.number, attempt.token).parent
        named = [(path.name.partition("-")[0], str(path)) for path in place.glob("[0-9]*-*")]
        numbered = [(int(number), _leg_of(path), path) for number, path in named if number.isdecimal()]
        return max((one for one in numbered if one[0] < attempt.number), default=(0, 0, None))[2]

    def write_order(self, run: Run, attempt: Attempt, spec: Spec) -> None:
        """Write the work order, without fsync: a job that finds none, or half of one, does nothing."""
        path = self.experiment.exchange_of(attempt)
        path.mkdir(parents=True, exist_ok=True)
        (path / "order.json").write_text(self.order(run, attempt, spec).to_json(), encoding="utf-8")

    def request(self, run: Run, attempt: Attempt, spec: Spec) -> JobRequest:
        """Return the request for the scheduler."""
        return JobRequest(
            token=attempt.token,
            name="%s-%03d" % (run.name, attempt.number),
            order=str(self.experiment.exchange_of(attempt) / "order.json"),
            zipapp=str(self.zipapp),
            log=str(self.experiment.log(run.name, attempt.number)),
            cpus=spec.resources.cpus,
            gpus=spec.resources.gpus,
            memory=spec.resources.memory,
            disk=spec.resources.disk,
            time=spec.job_time,
            grace=spec.checkpoints.grace,
            avoid=attempt.avoid,
            directory=str(self.experiment.exchange_of(attempt)),
            jobs=attempt.jobs,
        )

    def fence(self, attempt: Attempt) -> bool:
        path = self.experiment.exchange_of(attempt)
        path.mkdir(parents=True, exist_ok=True)
        return claim.fence(str(path / "claim.json"), by="controller")

    def shut(self, attempt: Attempt) -> None:
        legs.fence(str(self.experiment.exchange_of(attempt)), by="controller")

    def settle(self, attempt: Attempt) -> None:
        """Do nothing: the next attempt sees the same directories."""

    def logged_in(self, attempt: Attempt) -> Path:
        """Return the directory with the claims, event logs and deliveries of its job."""
        return self.experiment.exchange_of(attempt)

    def report(self, attempt: Attempt) -> Report | None:
        path = self.logged_in(attempt)
        try:
            return self._checked_report(path)
        except OSError:
            raise
        except Exception as error:
            # Nothing that a node writes may stop the controller: an unreadable report counts as none.
            raise OSError("the files of the job in %s cannot be read: %s" % (path, error)) from error

    def _checked_report(self, path: Path) -> Report | None:
        report = read_attempt(path)
        if report is None or report.logged_outcome is not Outcome.FINISHED:
            return report
        return replace(report, delivery_error=_find_delivery_error(_delivery(path), report.delivered or {}))

    def publish(self, attempt: Attempt) -> None:
        """Move the delivery to `results/`. Repeatable: once the mark exists, the result is complete."""
        delivered = _delivery(self.logged_in(attempt))
        mark = self.experiment.exchange_of(attempt) / "published"
        target = self.experiment.result(attempt.run)
        target.parent.mkdir(parents=True, exist_ok=True)
        if mark.exists() and target.exists():
            shutil.rmtree(delivered, ignore_errors=True)
            return
        if not delivered.exists():
            raise ResultGone("%s was accepted and has disappeared" % delivered)
        if target.exists():
            # Earlier results of this name are kept under another one.
            stamp = time.strftime("%Y%m%d-%H%M%S")
            target.rename(target.with_name("%s.before-%s-%s" % (target.name, stamp, attempt.token)))
        write_durably(mark, b"")
        _move(delivered, target)

    def retire(self, run: Run) -> None:
        """Remove the scratch of a finished run; what is left after `LONGEST_CLEANUP` seconds stays."""
        until = time.monotonic() + LONGEST_CLEANUP
        place = self.experiment.workdir / run.name
        with suppress(OSError):
            for scratch in place.iterdir():
                Scratch(str(scratch)).clear(keep_output=False, until=until)
            place.rmdir()


def _saving(run: Run, spec: Spec) -> SaveSettings:
    rules = spec.checkpoints
    return SaveSettings(
        every=rules.every,
        shortest=rules.shortest,
        longest=rules.longest,
        observed=round(run.observed, 3),
        interruptions=run.interruptions,
        blocked=run.save_blocked,
        durable=run.save_durable,
    )


def _delivery(exchange: Path) -> Path:
    """Return the delivery of the last leg that delivered anything."""
    held = [Path(leg.delivery_path) for leg, holder in legs.claimed(str(exchange)) if not holder.fenced]
    return next((place for place in reversed(held) if place.exists()), exchange / "output")


def _leg_of(scratch: str) -> int:
    number = scratch.rpartition(".")[2]
    return int(number) if number.isdecimal() else 1


def _move(source: Path, target: Path) -> None:
    """Rename `source`; to another file system, copy it and rename the copy."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        temporary = target.with_name(".%s.tmp" % target.name)
        shutil.rmtree(temporary, ignore_errors=True)
        deliver(str(shutil.copytree(source, temporary)), str(target))
        shutil.rmtree(source, ignore_errors=True)
    sync_directory(target.parent)


def _find_delivery_error(directory: Path, delivered: Mapping[str, Any]) -> str:
    """Compare a delivery with its manifest, seen from this side; return the difference, empty if none."""
    for name, facts in delivered.items():
        size = untrusted.integer(facts.get("size")) if isinstance(facts, dict) else None
        path, short = directory / name, untrusted.text(name, LONGEST_NAME)
        if Path(name).is_absolute() or ".." in Path(name).parts:
            return "the delivery names a file outside of itself: %s" % short
        try:
            found = path.lstat()
        except (OSError, ValueError):  # not there, or a name that no file can have
            return "the delivered file %s is missing" % short
        if not stat.S_ISREG(found.st_mode):
            return "the delivered file %s is not a regular file" % short
        if found.st_size != size:
            expected = "an unknown number" if size is None else size
            return "the delivered file %s has %d bytes instead of %s" % (short, found.st_size, expected)
    return "" if directory.is_dir() else "nothing was delivered"
