"""Exchange through the experiment's own directory, on a file system that controller and nodes share."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from outlast.domain.model import Attempt, Outcome, Run, Spec
from outlast.domain.observation import Report
from outlast.exchange import attempt_log, deliveries
from outlast.exchange.attempt_log import read_attempt
from outlast.exchange.base import FilesGone, Publication, ResultGone
from outlast.exchange.experiment import Experiment
from outlast.exchange.zipapp import build as build_zipapp
from outlast.filesystem import is_gone, sync_directory, write_durably
from outlast.node import claim, legs
from outlast.node.files import link_tree
from outlast.node.order import SaveSettings, WorkOrder
from outlast.node.quantities import show_size
from outlast.node.scratch import Scratch
from outlast.node.staging.plan import DataPlan
from outlast.schedulers.base import JobRequest
from outlast.schedulers.profile import Profile
from outlast.spec.command import arguments
from outlast.untrusted_files import create_file

#: The file with the reason in a directory of rejected outputs.
REJECTED_NOTE = "OUTLAST-REJECTED.txt"
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

    def place(self, attempt: Attempt) -> str:
        """Return the path of the attempt's directory, for messages."""
        return str(self.experiment.exchange_of(attempt))

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
            other_outputs=spec.other_outputs,
            time=spec.job_time,
            grace=spec.checkpoints.grace,
            signal=spec.checkpoints.signal,
            keep=spec.checkpoints.keep,
            saving=_saving(run, spec),
            cpus=spec.resources.cpus,
            gpus=spec.resources.gpus,
            memory=spec.resources.memory,
            # The search paths of the login node would override those that the profile sets.
            environment={} if self.site.sets_environment else dict(spec.environment),
            env=dict(spec.env),
            env_files=dict(spec.env_files),
            limit_signal=self.limit_signal,
            jobs=attempt.jobs,
            bell=str(place.bell) if self.notifies else None,
            node_scratch=self.site.scratch or None,
            data=self.data_plan(spec),
            snapshots=str(place.snapshots(run.name)),
            most_snapshots=spec.checkpoints.snapshots,
            snapshot_bytes=spec.checkpoints.snapshot_size,
            start_before=attempt.start_before,
            resume=arguments(spec.checkpoints.resume, run.params),
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
        self.prepare_job(run)
        path = self.experiment.exchange_of(attempt)
        path.mkdir(parents=True, exist_ok=True)
        with create_file(path / "order.json") as file:
            file.write(self.order(run, attempt, spec).to_json().encode())

    def prepare_job(self, run: Run) -> None:
        """Provide what a job needs to start and to write its log. Raise OSError if that is not possible."""
        if not self.zipapp.is_file():
            build_zipapp(self.zipapp)
        logs = self.experiment.log(run.name, 1).parent
        logs.mkdir(parents=True, exist_ok=True)
        if not os.access(logs, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(logs))

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

    @contextmanager
    def accessing(self, attempt: Attempt) -> Iterator[None]:
        """Turn an OSError into FilesGone if the attempt's directory is gone; else add the path to it."""
        path = self.experiment.exchange_of(attempt)
        try:
            yield
        except FilesGone:
            raise
        except OSError as error:
            if is_gone(path):
                raise FilesGone(str(path)) from error
            if error.filename is None:
                error.filename = str(path)
            raise

    def fence(self, attempt: Attempt) -> bool:
        path = self.experiment.exchange_of(attempt)
        with self.accessing(attempt):
            path.mkdir(parents=True, exist_ok=True)
            return claim.fence(str(path / "claim.json"), by="controller")

    def shut(self, attempt: Attempt) -> None:
        path = self.experiment.exchange_of(attempt)
        with self.accessing(attempt):
            if is_gone(path):
                _fence_anew(path, max(attempt.restarts + 1, attempt.jobs))
                raise FilesGone(str(path))
            legs.fence(str(path), by="controller")

    def settle(self, attempt: Attempt) -> None:
        """Do nothing: the next attempt sees the same directories."""

    def log_directory(self, attempt: Attempt) -> Path:
        """Return the directory with the claims, event logs and deliveries of its job."""
        return self.experiment.exchange_of(attempt)

    def report(self, attempt: Attempt) -> Report | None:
        path = self.log_directory(attempt)
        try:
            with self.accessing(attempt):
                report = self._checked_report(path)
        except OSError:
            raise
        except Exception as error:
            # Nothing that a node writes may stop the controller: an unreadable report counts as none.
            raise OSError("the files of the job in %s cannot be read: %s" % (path, error)) from error
        place = self.experiment.exchange_of(attempt)
        if report is None and is_gone(place):
            raise FilesGone(str(place))
        return report

    def job_log(self, attempt: Attempt) -> Path:
        """Return the file with what the attempt's job printed."""
        return self.experiment.log(attempt.run, attempt.number)

    def last_output(self, attempt: Attempt) -> tuple[str, ...]:
        """Return the last lines that the attempt's job printed; none if they cannot be read."""
        return attempt_log.last_lines(self.job_log(attempt))

    def _checked_report(self, path: Path) -> Report | None:
        report = read_attempt(path)
        if report is None or report.logged_outcome is not Outcome.FINISHED:
            return report
        # A delivery of very many files is logged by its totals alone.
        total = report.delivered_total if report.delivered is None else None
        error = deliveries.find_error(deliveries.find_delivery(path), report.delivered or {}, total)
        return replace(report, delivery_error=error)

    def publish(self, attempt: Attempt) -> Publication:
        """Move the delivery to `results/`. Repeatable: once the mark exists, the result is complete."""
        try:
            self._publish(attempt)
            return Publication(
                is_empty=not any(
                    size >= 0 for size in deliveries.list_sizes(self.experiment.result(attempt.run)).values()
                ),
                left=self._describe_left(attempt),
            )
        except OSError as error:
            if error.filename is None:
                error.filename = str(self.experiment.result(attempt.run))
            raise

    def _publish(self, attempt: Attempt) -> None:
        delivered = deliveries.find_delivery(self.log_directory(attempt))
        rejected = self.experiment.rejected(attempt.run)
        mark = self.experiment.exchange_of(attempt) / "published"
        target = self.experiment.result(attempt.run)
        target.parent.mkdir(parents=True, exist_ok=True)
        if mark.exists() and target.exists():
            deliveries.remove_quietly(delivered)
            return
        if self._rejection_mark(attempt).exists():
            delivered = rejected
        if not delivered.is_dir() or delivered.is_symlink():
            raise ResultGone("%s was accepted and has disappeared" % delivered)
        if os.path.lexists(target):
            # Earlier results of this name, or a link of the user's, are kept under another one.
            deliveries.keep_earlier(target, attempt.token)
        write_durably(mark, b"")
        if delivered == rejected:
            (delivered / REJECTED_NOTE).unlink(missing_ok=True)
        deliveries.move(delivered, target)

    def reject(self, attempt: Attempt, reason: str) -> str:
        """Keep the outputs of an attempt that failed their checks, with the reason, in `results/`.

        Return the path of the directory; empty if there are no outputs. Repeatable. Raise OSError.
        """
        target = self.experiment.rejected(attempt.run)
        mark = self._rejection_mark(attempt)
        if mark.exists() and target.is_dir():
            return str(target)
        source = self._newest_output(attempt)
        if source is None:
            return ""
        temporary = target.with_name(".%s.tmp" % target.name)
        deliveries.remove_quietly(temporary)
        target.parent.mkdir(parents=True, exist_ok=True)
        # The next attempt gets copies of the outputs, so both may have the same files.
        link_tree(str(source), str(temporary))
        deliveries.remove_odd(temporary)
        with create_file(temporary / REJECTED_NOTE) as file:
            file.write((reason + "\n").encode())
        if os.path.lexists(target):
            deliveries.keep_earlier(target, attempt.token)
        write_durably(mark, b"")
        temporary.rename(target)
        sync_directory(target.parent)
        return str(target)

    def _rejection_mark(self, attempt: Attempt) -> Path:
        return self.experiment.exchange_of(attempt) / "rejected"

    def _newest_output(self, attempt: Attempt) -> Path | None:
        """Return the outputs of the attempt's last start that left any."""
        first = self.experiment.scratch(attempt.run, attempt.number, attempt.token)
        places = sorted([first, *first.parent.glob(first.name + ".*")], key=lambda one: _leg_of(one.name))
        # What a link leads to is not ours.
        outputs = [place / "output" for place in places if not place.is_symlink()]
        return next(
            (
                one
                for one in reversed(outputs)
                if one.is_dir() and not one.is_symlink() and any(one.iterdir())
            ),
            None,
        )

    def _describe_left(self, attempt: Attempt) -> str:
        """Return which files of the run were too large for its results, and where they are; empty if none."""
        texts = []
        first = self.experiment.scratch(attempt.run, attempt.number, attempt.token)
        for place in sorted(first.parent.glob(first.name + "*")):
            left = Path(Scratch(str(place)).left)
            with suppress(OSError):  # there is none, or it cannot be read now
                sizes = [size for size in deliveries.list_sizes(left).values() if size >= 0]
                if sizes:
                    text = "%s of %s, larger than other_outputs, %s in %s; `mv` gets them from there"
                    count = "1 file" if len(sizes) == 1 else "%d files" % len(sizes)
                    texts.append(
                        text % (count, show_size(sum(sizes)), "is" if len(sizes) == 1 else "are", left)
                    )
        return "; ".join(texts)

    def retire(self, run: Run) -> None:
        """Remove the scratch of a finished run; what is left after `LONGEST_CLEANUP` seconds stays."""
        until = time.monotonic() + LONGEST_CLEANUP
        deliveries.remove_quietly(self.experiment.snapshots(run.name))
        place = self.experiment.workdir / run.name
        with suppress(OSError):
            if place.is_symlink():
                return  # what it leads to is not ours
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


def _fence_anew(exchange: Path, starts: int) -> None:
    """Fence all legs of an attempt whose directory is gone.

    A job that starts late finds the first fence. A running one looks for the next leg, and ends itself.
    """
    with suppress(OSError):  # a precaution: the journal keeps the results of such a job from being accepted
        for leg in islice(legs.possible_legs(str(exchange)), starts + 1):
            Path(leg.directory).mkdir(parents=True, exist_ok=True)
            claim.fence(leg.claim_path, by="controller")


def _leg_of(scratch: str) -> int:
    number = scratch.rpartition(".")[2]
    return int(number) if number.isdecimal() else 1
