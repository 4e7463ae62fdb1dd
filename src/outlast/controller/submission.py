"""Submission: turns a validated `params.yaml` into a request in the inbox.

The code is archived and the environment is copied once, at submission, so that all attempts of a run have the
same code and environment whatever the user changes later.
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
from outlast.journal.ownership import check_owner
from outlast.node import code_archive

if TYPE_CHECKING:
    from outlast.journal.journal import Journal
    from outlast.spec import Parsed


@dataclass(frozen=True)
class Submitted:
    """The runs of a submission: those that were added, and those that were known before."""

    spec: Spec
    new: tuple[RunPlan, ...]
    #: Submitted before, and unchanged; they are left alone.
    known: tuple[RunPlan, ...]
    #: Submitted before with another `params.yaml` or other code; they are left alone.
    changed: tuple[RunPlan, ...]


def prepare(experiment: Experiment, parsed: Parsed, *, keep: bool = True, source: Path | None = None) -> Spec:
    """Return the spec with code archive and environment. The archive stays in the experiment if `keep`.

    `source` is the directory of the code, if that is not the experiment's own.

    Raise BadInput if the code cannot be found, NotWritable if the archive cannot be written.
    """
    spec = replace(parsed.spec, environment=filter_environment(os.environ))
    if not spec.code:
        return spec
    try:
        with tempfile.TemporaryDirectory(dir=_create(experiment.params) if keep else None) as folder:
            draft = Path(folder) / "code.tar"
            sha256 = code_archive.pack(source or experiment.root, spec.code, draft)
            if keep:
                draft.replace(experiment.code(sha256))
                sync_directory(experiment.params)
    except ValueError as error:
        raise BadInput("%s: code: %s" % (experiment.params_file, error)) from error
    except OSError as error:
        raise NotWritable("%s: the code could not be archived: %s" % (experiment.params, error)) from error
    return replace(spec, code_sha256=sha256)


def submit(experiment: Experiment, parsed: Parsed, journal: Journal | None) -> Submitted:
    """Request new runs durably; known runs are left alone. `journal` is None before the first submission.

    Raise BadInput if runs are under way on another cluster, NotWritable if another user has the experiment.
    """
    check_owner(experiment.journal)
    spec = prepare(experiment, parsed)
    before = {run.name: (run.spec, run.params) for run in journal.runs()} if journal else {}
    numbers = {number for number, _ in before.values()}
    same = {number: _same(journal.spec(number), spec) for number in numbers} if journal else {}
    new, known, changed = [], [], []
    for plan in parsed.runs:
        number, params = before.get(plan.name, (None, None))
        if number is None:
            new.append(plan)
        elif same[number] and params == plan.params:
            known.append(plan)
        else:
            changed.append(plan)
    if journal is not None and new:
        _refuse_other_cluster(journal, spec)
    if new:
        Inbox(experiment.inbox).put(Submit(spec, tuple(new)))
    return Submitted(spec, tuple(new), tuple(known), tuple(changed))


def retry(
    experiment: Experiment,
    parsed: Parsed,
    journal: Journal,
    runs: tuple[Run, ...],
    *,
    again: bool = False,
    held_back: bool = False,
    from_scratch: bool = False,
) -> Spec:
    """Request durably that these runs are retried with the current `params.yaml` and code; return the spec.

    `again`: finished runs too. `held_back`: also all runs that are held back. `from_scratch`: what they had
    saved was moved aside. Raise BadInput if runs are under way on another cluster, NotWritable if another
    user has the experiment.
    """
    check_owner(experiment.journal)
    spec = prepare(experiment, parsed)
    _refuse_other_cluster(journal, spec)
    names = tuple(run.name for run in runs)
    Inbox(experiment.inbox).put(Retry(spec, names, again, held_back, from_scratch))
    return spec


def _refuse_other_cluster(journal: Journal, spec: Spec) -> None:
    elsewhere = under_way_elsewhere(journal, spec)
    if elsewhere:
        raise BadInput(elsewhere)


def _same(one: Spec, other: Spec) -> bool:
    """Return True if both specs are the same except for the environment, which differs by terminal."""
    return replace(one, environment={}) == replace(other, environment={})


def _create(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory
