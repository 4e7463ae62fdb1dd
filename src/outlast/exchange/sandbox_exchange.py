"""Exchange with jobs that share no file system: everything travels with them (`outlast.node.sandbox`).

The attempt's exchange directory is the job's directory on this side. The scheduler takes `order.json`,
zipapp, code and `committed/` from it at every start, puts `travel/` there when the job has ended, and a
running job adds to `committed/`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from outlast.domain.model import Attempt, Run, Spec
from outlast.domain.observation import Report
from outlast.exchange import attempt_log, sandbox_results
from outlast.exchange.shared_files import SharedFilesExchange
from outlast.filesystem import write_durably
from outlast.node import legs
from outlast.node.order import WorkOrder
from outlast.node.sandbox import layout, manifest
from outlast.node.staging.plan import DataPlan
from outlast.node.staging.sources.file_source import path_of
from outlast.schedulers.base import JobRequest
from outlast.training.checkpoints import checkpoint_names
from outlast.training.env import LEAST_KEEP

#: Where data arrives in a job's directory.
ARRIVED = "arrived"
#: A directory of the job's own that does not travel back; HTCondor sets it.
NODE_SCRATCH = "$_CONDOR_SCRATCH_DIR"


class SandboxExchange(SharedFilesExchange):
    """Paths in the work order are relative to the directory it arrives in."""

    def order(self, run: Run, attempt: Attempt, spec: Spec) -> WorkOrder:
        order = super().order(run, attempt, spec)
        return replace(
            order,
            exchange=layout.TRAVEL,
            scratch=os.path.join(layout.TRAVEL, layout.UNFINISHED),
            checkpoints=os.path.join(layout.TRAVEL, layout.CHECKPOINTS),
            log=os.path.join(layout.TRAVEL, layout.LOG),
            previous_scratch=None,
            code=Path(order.code).name if order.code else None,
            zipapp=self.zipapp.name,
            # Search paths of this machine mean nothing on another.
            environment={},
            bell=None,
            node_scratch=self.site.scratch or NODE_SCRATCH,
            sandbox=True,
            commit=self.site.commit,
            commit_every=self.site.commit_every,
        )

    def data_plan(self, spec: Spec) -> DataPlan:
        """What the scheduler carries lies beside the order under its own name. Where the site has no cache,
        data stays in the job's directory, and so does what arrived before the job was restarted in place."""
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
        """The order comes last, so that no job finds it without what it needs."""
        place = self.experiment.exchange_of(attempt)
        place.mkdir(parents=True, exist_ok=True)
        if not (place / layout.COMMITTED).exists():
            self._provide(place, run, attempt)
        write_durably(place / "order.json", self.order(run, attempt, spec).to_json().encode())

    def _provide(self, place: Path, run: Run, attempt: Attempt) -> None:
        """The newest checkpoints and unfinished outputs of the run, as a first commit; whole or not."""
        temporary = place / (".%s.tmp" % layout.COMMITTED)
        layout.remove(str(temporary))
        commit = temporary / layout.commit_name(0)
        commit.mkdir(parents=True)
        source = self.experiment.checkpoints(run.name)
        found = [path.name for path in source.iterdir()] if source.is_dir() else []
        names = sorted(found, key=checkpoint_names.parse_age)
        whole = [name for name in names if checkpoint_names.is_checkpoint(name)]
        for name in names:
            if not name.startswith(".") and name not in whole[:-LEAST_KEEP]:
                sandbox_results.copy(source / name, commit / layout.CHECKPOINTS / name)
        scratch = self._previous_scratch(attempt)
        if scratch is not None and (Path(scratch) / layout.OUTPUT).is_dir():
            sandbox_results.copy(Path(scratch) / layout.OUTPUT, commit / layout.UNFINISHED / layout.OUTPUT)
        holds = manifest.list_files(str(commit), layout.PARTS, 0)
        sandbox_results.remove_links(commit)  # no scheduler carries them; the job makes them again
        manifest.write(str(commit), holds)
        temporary.rename(place / layout.COMMITTED)

    def request(self, run: Run, attempt: Attempt, spec: Spec) -> JobRequest:
        place = self.experiment.exchange_of(attempt)
        code = [str(self.experiment.code(spec.code_sha256))] if spec.code_sha256 else []
        # The jobs of a chain are one here, which starts itself again.
        return replace(
            super().request(run, attempt, spec),
            log=str(place / sandbox_results.JOB_LOG),
            inputs=(*code, str(place / layout.COMMITTED), *self._carried(spec)),
            jobs=1,
        )

    def _carried(self, spec: Spec) -> tuple[str, ...]:
        """Data that the scheduler carries, and the file with the token for what it does not."""
        native = [item.urls[0] for item in spec.data if item.method == "native"]
        token = self.site.token_file if spec.data else ""
        return (*map(path_of, native), *([token] if token else ()))

    def fence(self, attempt: Attempt) -> bool:
        """No claim can be placed on a machine far away. A job that has not been heard of can be kept from
        starting by taking its order away: the scheduler then misses an input."""
        if legs.claimed(str(self.logged_in(attempt))):
            return False
        self.shut(attempt)
        return True

    def shut(self, attempt: Attempt) -> None:
        """A start that is under way is not stopped by it; the controller has its job cancelled."""
        path = self.experiment.exchange_of(attempt) / "order.json"
        try:
            path.rename(path.with_name("order.withdrawn.json"))
        except FileNotFoundError:
            return  # withdrawn before, or never written

    def logged_in(self, attempt: Attempt) -> Path:
        """What came back with the job, else what it sent while it ran."""
        return attempt_log.logged_in(self.experiment.exchange_of(attempt))

    def report(self, attempt: Attempt) -> Report | None:
        sandbox_results.remove_links(self.logged_in(attempt))
        return super().report(attempt)

    def settle(self, attempt: Attempt) -> None:
        sandbox_results.settle(self.experiment, attempt)
