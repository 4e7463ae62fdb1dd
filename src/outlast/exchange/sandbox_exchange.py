"""The exchange for jobs without a shared file system: files travel with the job (`outlast.node.sandbox`).

The attempt's exchange directory is the job's directory on this side. The scheduler transfers `order.json`,
zipapp, code and `committed/` from it at every start and writes `travel/` there when the job has ended; a
running job adds to `committed/`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from outlast.domain.model import Attempt, Run, Spec
from outlast.domain.observation import Report
from outlast.exchange import attempt_log, file_trees, sandbox_results, sandbox_snapshots
from outlast.exchange.base import FilesGone
from outlast.exchange.shared_files import SharedFilesExchange
from outlast.filesystem import is_gone, write_durably
from outlast.node import legs
from outlast.node.order import WorkOrder
from outlast.node.sandbox import layout, manifest
from outlast.node.staging.plan import DataPlan
from outlast.node.staging.sources.file_source import path_of
from outlast.schedulers.base import JobRequest
from outlast.training.checkpoints import checkpoint_names
from outlast.training.env import LEAST_KEEP
from outlast.untrusted_files import remove

#: The cache of data in a job's directory, if the profile names none.
ARRIVED = "arrived"
#: A directory of the job that is not transferred back; HTCondor sets the variable.
NODE_SCRATCH = "$_CONDOR_SCRATCH_DIR"


class SandboxExchange(SharedFilesExchange):
    """The exchange of jobs that have a sandbox. Paths in the work order are relative to the sandbox."""

    def order(self, run: Run, attempt: Attempt, spec: Spec) -> WorkOrder:
        order = super().order(run, attempt, spec)
        return replace(
            order,
            exchange=layout.TRAVEL,
            scratch=os.path.join(layout.TRAVEL, layout.UNFINISHED),
            checkpoints=os.path.join(layout.TRAVEL, layout.CHECKPOINTS),
            log=os.path.join(layout.TRAVEL, layout.LOG),
            snapshots=os.path.join(layout.TRAVEL, layout.SNAPSHOTS),
            previous_scratch=None,
            code=Path(order.code).name if order.code else None,
            zipapp=self.zipapp.name,
            # Search paths of this machine are not valid on another.
            environment={},
            env_files={name: Path(path).name for name, path in spec.env_files.items()},
            bell=None,
            node_scratch=self.site.scratch or NODE_SCRATCH,
            sandbox=True,
            commit=self.site.commit,
            commit_every=self.site.commit_every,
        )

    def data_plan(self, spec: Spec) -> DataPlan:
        """Return how data gets into the jobs.

        Items that the scheduler transfers are beside the work order, under their names. If the site has no
        cache, data is kept in the job's directory, where a restart in place finds it again.
        """
        plan = super().data_plan(spec)
        token = plan.token_file
        return replace(
            plan,
            items=tuple(
                replace(item, urls=(item.name,)) if item.method == "native" else item for item in plan.items
            ),
            cache=self.site.cache or ARRIVED,
            token_file=Path(token).name,
        )

    def write_order(self, run: Run, attempt: Attempt, spec: Spec) -> None:
        """Write the work order, after the files that the job needs."""
        self.prepare_job(run)
        place = self.experiment.exchange_of(attempt)
        place.mkdir(parents=True, exist_ok=True)
        if not (place / layout.COMMITTED).exists():
            self._provide(place, run, attempt, spec)
        write_durably(place / "order.json", self.order(run, attempt, spec).to_json().encode())

    def _provide(self, place: Path, run: Run, attempt: Attempt, spec: Spec) -> None:
        """Create commit 0, atomically: the newest checkpoints, their snapshots and the unfinished outputs."""
        temporary = place / (".%s.tmp" % layout.COMMITTED)
        remove(temporary)
        commit = temporary / layout.commit_name(0)
        commit.mkdir(parents=True)
        source = self.experiment.checkpoints(run.name)
        found = [path.name for path in source.iterdir()] if source.is_dir() else []
        names = sorted(found, key=checkpoint_names.parse_age)
        whole = [name for name in names if checkpoint_names.is_checkpoint(name)]
        for name in names:
            if not name.startswith(".") and name not in whole[:-LEAST_KEEP]:
                file_trees.copy(source, name, commit / layout.CHECKPOINTS / name)
        scratch = self._previous_scratch(attempt)
        if scratch is not None and (Path(scratch) / layout.OUTPUT).is_dir():
            file_trees.copy(Path(scratch), layout.OUTPUT, commit / layout.UNFINISHED / layout.OUTPUT)
        if scratch is not None and (Path(scratch) / layout.MADE).is_file():
            file_trees.copy(Path(scratch), layout.MADE, commit / layout.UNFINISHED / layout.MADE)
        if found:  # without checkpoints, the user wants to start from the beginning
            self._provide_snapshots(commit, run, spec)
        holds = manifest.list_files(str(commit), layout.PARTS, 0)
        # No scheduler transfers links; the job creates them again.
        sandbox_results.remove_links(temporary, layout.commit_name(0))
        manifest.write(str(commit), holds)
        temporary.rename(place / layout.COMMITTED)

    def _provide_snapshots(self, commit: Path, run: Run, spec: Spec) -> None:
        """Add the newest snapshots to a commit, as many as the pool transfers beside the other files."""
        largest = self.site.largest_transfer
        room = None
        if largest is not None:
            room = largest - sandbox_snapshots.size_of(commit) - sum(map(_file_size, self._files(spec)))
        source = self.experiment.snapshots(run.name)
        sandbox_snapshots.provide(source, commit / layout.SNAPSHOTS, spec.checkpoints.snapshots, room)

    def _files(self, spec: Spec) -> tuple[str, ...]:
        """Return the files that the scheduler transfers to every job, beside the commit."""
        return (*self._code(spec), self.site.container, *self._carried(spec))

    def _code(self, spec: Spec) -> tuple[str, ...]:
        return (str(self.experiment.code(spec.code_sha256)),) if spec.code_sha256 else ()

    def request(self, run: Run, attempt: Attempt, spec: Spec) -> JobRequest:
        place = self.experiment.exchange_of(attempt)
        # A chain is one job here, which restarts itself.
        return replace(
            super().request(run, attempt, spec),
            log=str(place / sandbox_results.JOB_LOG),
            inputs=(*self._code(spec), str(place / layout.COMMITTED), *self._carried(spec)),
            jobs=1,
        )

    def _carried(self, spec: Spec) -> tuple[str, ...]:
        """Return the data that the scheduler transfers, the token file for the other data, and secrets."""
        native = [item.urls[0] for item in spec.data if item.method == "native"]
        token = self.site.token_file if spec.data else ""
        return (*map(path_of, native), *([token] if token else ()), *dict.fromkeys(spec.env_files.values()))

    def fence(self, attempt: Attempt) -> bool:
        """Keep jobs from starting on this attempt; return False if one has started already.

        A claim cannot be written on another machine. Instead the work order is renamed: without that input
        the scheduler does not start the job.
        """
        with self.accessing(attempt):
            if legs.claimed(str(self.log_directory(attempt))):
                return False
            self.shut(attempt)
        return True

    def shut(self, attempt: Attempt) -> None:
        """Keep further jobs from starting. A running job is not stopped: the controller cancels it."""
        path = self.experiment.exchange_of(attempt) / "order.json"
        with self.accessing(attempt), suppress(FileNotFoundError):  # already renamed, or never written
            path.rename(path.with_name("order.withdrawn.json"))

    def log_directory(self, attempt: Attempt) -> Path:
        """Return the directory with the files that came back with the job or, until then, that it sent.

        No job writes beside these: what else lies there is not the log of one.
        """
        place = self.experiment.exchange_of(attempt)
        found = attempt_log.log_directory(place)
        return place / layout.TRAVEL if found == place else found

    def job_log(self, attempt: Attempt) -> Path:
        return self.experiment.exchange_of(attempt) / sandbox_results.JOB_LOG

    def report(self, attempt: Attempt) -> Report | None:
        with self.accessing(attempt):
            place = self.experiment.exchange_of(attempt)
            sandbox_results.remove_links(place, str(self.log_directory(attempt).relative_to(place)))
        return super().report(attempt)

    def settle(self, attempt: Attempt) -> None:
        place = self.experiment.exchange_of(attempt)
        if attempt.job and is_gone(place):  # without a job, it may never have been written
            raise FilesGone(str(place))
        try:
            with self.accessing(attempt):
                sandbox_results.settle(self.experiment, attempt)
        except OSError:
            raise  # an error of the local file system: the controller tries again
        except Exception as error:
            # Nothing that a node sends may stop the controller.
            sandbox_results.set_aside(self.experiment, attempt, error)


def _file_size(path: str) -> int:
    """Return the size of a file; 0 for URLs and missing files."""
    file = Path(path)
    return file.stat().st_size if file.is_file() else 0
