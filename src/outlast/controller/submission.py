"""From a checked `params.yaml` to a request that the controller can carry out.

The code is packed and the environment is noted here, once: every attempt of a run sees the same, whatever
is edited or logged out of in the meantime.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.controller.inbox import Inbox, Retry, Submit, under_way_elsewhere
from outlast.domain.model import Run, RunPlan, Spec
from outlast.errors import BadInput, NotWritable
from outlast.exchange.experiment import Experiment
from outlast.filesystem import sync_directory
from outlast.job_environment import filter_environment
from outlast.node import code_archive

if TYPE_CHECKING:
    from outlast.journal.journal import Journal
    from outlast.spec import Parsed


@dataclass(frozen=True)
class Submitted:
    spec: Spec
    new: tuple[RunPlan, ...]
    #: Known from an earlier submission; nothing is done about them.
    known: tuple[RunPlan, ...]
    #: Known, but `params.yaml` or the code has changed since.
    changed: tuple[RunPlan, ...]


def prepare(experiment: Experiment, parsed: Parsed, *, keep: bool = True) -> Spec:
    """The spec with code and environment. The archive of the code is left in the experiment if `keep`."""
    spec = replace(parsed.spec, environment=filter_environment(os.environ))
    if not spec.code:
        return spec
    try:
        with tempfile.TemporaryDirectory(dir=_made(experiment.params) if keep else None) as folder:
            draft = Path(folder) / "code.tar"
            sha256 = code_archive.pack(experiment.root, spec.code, draft)
            if keep:
                draft.replace(experiment.code(sha256))
                sync_directory(experiment.params)
    except ValueError as error:
        raise BadInput("%s: code: %s" % (experiment.params_file, error)) from error
    except OSError as error:
        raise NotWritable("%s: the code could not be packed: %s" % (experiment.params, error)) from error
    return replace(spec, code_sha256=sha256)


def submit(experiment: Experiment, parsed: Parsed, journal: Journal | None) -> Submitted:
    """Durable when this returns. `journal` is None where nothing has been submitted before."""
    spec = prepare(experiment, parsed)
    new, known, changed = [], [], []
    for plan in parsed.runs:
        run = journal.run(plan.name) if journal else None
        if run is None:
            new.append(plan)
        elif journal is not None and _same(journal.spec(run.spec), spec) and run.params == plan.params:
            known.append(plan)
        else:
            changed.append(plan)
    if journal is not None and new:
        _refuse_other_cluster(journal, spec)
    if new:
        Inbox(experiment.inbox).put(Submit(spec, tuple(new)))
    return Submitted(spec, tuple(new), tuple(known), tuple(changed))


def retry(experiment: Experiment, parsed: Parsed, journal: Journal, runs: tuple[Run, ...]) -> Spec:
    spec = prepare(experiment, parsed)
    _refuse_other_cluster(journal, spec)
    Inbox(experiment.inbox).put(Retry(spec, tuple(run.name for run in runs)))
    return spec


def _refuse_other_cluster(journal: Journal, spec: Spec) -> None:
    elsewhere = under_way_elsewhere(journal, spec)
    if elsewhere:
        raise BadInput(elsewhere)


def _same(one: Spec, other: Spec) -> bool:
    """Whether they ask for the same. From another terminal the environment differs; that is no change."""
    return replace(one, environment={}) == replace(other, environment={})


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory
