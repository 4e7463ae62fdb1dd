"""`outlast check`: validate an experiment and list all errors; submit nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.common import cluster_option, json_option, wrap_line
from outlast.text import counted

if TYPE_CHECKING:
    from outlast.cli.scheduler_checks import SchedulerFindings
    from outlast.domain.model import RunPlan
    from outlast.node.output_rule import OutputRule
    from outlast.node.staging.item import DataItem
    from outlast.spec import Mistake, Parsed


@click.command(name="check", short_help="Validate params.yaml and list all errors. Submits nothing.")
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@cluster_option
@json_option
@click.pass_context
def command(context: click.Context, directory: Path, cluster: str | None, as_json: bool) -> None:
    """Validate the experiment in DIR and list all errors with their lines. Submits nothing.

    Also asks the scheduler, for ten seconds at most, whether the queue exists and allows the requested time.
    Exits with 0 if the experiment can be submitted, with 2 if not.
    """
    parsed, mistakes = validate(directory, cluster)
    warnings: tuple[Mistake, ...] = ()
    responded = True
    if parsed:
        findings, others = check_with_scheduler(parsed, directory)
        responded = findings.responded
        mistakes = (*mistakes, *findings.mistakes)
        warnings = (*parsed.warnings, *findings.warnings, *others)
    if as_json:
        click.echo(json.dumps(_as_json(parsed, mistakes, warnings), indent=2))
    else:
        for mistake in mistakes:
            click.echo(str(mistake), err=True)
        for warning in warnings:
            click.echo(f"warning: {warning}", err=True)
        if mistakes:
            click.echo(f"{counted(len(mistakes), 'error')}, nothing was submitted", err=True)
        elif parsed:
            for line in summary(parsed):
                # A command stays on one line, to be copied.
                click.echo(line if line.startswith("  command") else wrap_line(line, 12))
            click.echo(_conclude(directory, cluster, responded))
    context.exit(2 if mistakes else 0)


def validate(directory: Path, cluster: str | None = None) -> tuple[Parsed | None, tuple[Mistake, ...]]:
    """Return the experiment, or None if it cannot be read, and all mistakes that `submit` would find."""
    from outlast import spec

    parsed: Parsed | None = None
    mistakes: tuple[Mistake, ...] = ()
    try:
        parsed = spec.read(directory, cluster)
    except spec.BadSpec as bad:
        mistakes = bad.mistakes
    if directory.is_dir() and not os.access(directory, os.W_OK | os.X_OK):
        text = "is not writable, but the journal and the results are written there"
        hint = "type `chmod u+wx` for it, or copy the experiment to a directory of your own"
        mistakes = (*mistakes, spec.Mistake(str(directory), None, None, text, hint))
    return parsed, mistakes


def check_with_scheduler(parsed: Parsed, directory: Path) -> tuple[SchedulerFindings, list[Mistake]]:
    """Return what the scheduler shows, and warnings about the code and the hosts.

    Scheduler and hosts are queried side by side.
    """
    from concurrent.futures import ThreadPoolExecutor

    from outlast.cli.host_checks import check_hosts
    from outlast.cli.scheduler_checks import check_scheduler
    from outlast.spec.cluster_library import Library

    cluster = Library(directory).find(parsed.cluster.name)
    assert cluster is not None
    with ThreadPoolExecutor(1) as pool:
        hosts = pool.submit(check_hosts, parsed, cluster, directory)
        findings = check_scheduler(parsed, cluster)
        return findings, [*_warn_if_nothing_is_saved(parsed, directory), *hosts.result()]


def _warn_if_nothing_is_saved(parsed: Parsed, directory: Path) -> list[Mistake]:
    """Return a warning if the code that is sent cannot save a checkpoint, and may not start over."""
    from outlast.spec import Mistake, code_files

    spec, words = parsed.spec, ("outlast", "OUTLAST_CHECKPOINT_DIR")
    in_command = any(word in text for word in words for text in (spec.command, *spec.env.values()))
    resumes = spec.limits.start_over or spec.checkpoints.resume
    if resumes or in_command or code_files.mentions(words, spec.code, directory) is not False:
        return []
    text = (
        "the code that is sent mentions neither outlast nor OUTLAST_CHECKPOINT_DIR: a run that reaches its "
        "time limit continues only if the script finds and reads what it has saved, else it fails"
    )
    hint = (
        "if it needs words such as --resume for that, set checkpoints: {resume: ...}; if it may start from "
        "the beginning, limits: {start_over: yes}"
    )
    return [Mistake("params.yaml", None, None, text, hint)]


def summary(parsed: Parsed) -> list[str]:
    """Return a few lines about what would run."""
    from outlast.spec.command import arguments
    from outlast.units import show_duration

    spec, runs = parsed.spec, parsed.runs
    time, total = show_duration(spec.job_time), show_duration(spec.limits.total)
    lines = [
        f"{spec.name}: {_runs(runs)} on cluster {parsed.cluster.name}",
        f"  command   {' '.join(_quoted(arguments(spec.command, runs[0].params)))}",
        f"  code      {', '.join(spec.code) or 'no files are sent with the job'}",
        f"  attempts  {time} each; at most {spec.limits.attempts:,} and {total} in total per run",
    ]
    lines += [f"            {note}" for note in parsed.notes]
    if spec.env or spec.env_files:
        lines.append(
            f"  env       {', '.join([*spec.env, *(f'{name} from a file' for name in spec.env_files)])}"
        )
    for item, method in zip(spec.data, parsed.data_methods, strict=True):
        lines += [f"  data      {data_line(item)}", f"            method {method.method}: {method.why}"]
    lines += [f"  output    {_rule(rule)}" for rule in spec.outputs]
    if not spec.outputs:
        lines.append("  outputs   none listed, so none are checked")
    lines.append(f"  kept      {_kept(parsed)}")
    return lines


def _kept(parsed: Parsed) -> str:
    """Return a sentence about the files that are kept besides the outputs that are listed."""
    from outlast.units import show_size

    spec = parsed.spec
    explicit = "everything in $OUTLAST_OUTPUT_DIR"
    others = f"{explicit}, and new or changed files in the working directory"
    limit = show_size(spec.other_outputs)
    if parsed.cluster.scheduler == "htcondor":
        return f"{others}, of {limit} together (other_outputs); larger ones do not leave the job"
    if not spec.other_outputs:
        return (
            f"{explicit}; new and changed files in the working directory stay in workdir (other_outputs: 0)"
        )
    return f"{others}, of {limit} together (other_outputs); larger ones stay in workdir"


def data_line(item: DataItem) -> str:
    """Return the name of the data, where it goes, and whether it is verified."""
    to = f"$OUTLAST_DATA_DIR/{item.to}" if item.to else "$OUTLAST_DATA_DIR"
    goes = {"no": "to", "yes": "unpacked to", "nested": "unpacked, with the archives inside it, to"}[
        item.unpack
    ]
    pinned = f"{' and '.join(item.digests)} pinned" if item.digests else "no digest pinned"
    return f"{item.name}, {goes} {to}; {pinned}"


def _conclude(directory: Path, cluster: str | None, responded: bool) -> str:
    found = "No errors." if responded else "No errors in the files; the scheduler could not be queried."
    words = ["" if directory == Path() else str(directory), *(["--cluster", cluster] if cluster else [])]
    return " ".join([found, "Next: outlast run", *_quoted([word for word in words if word])])


def _runs(runs: Sequence[RunPlan]) -> str:
    shown = ", ".join(run.name for run in runs[:3])
    return f"{counted(len(runs), 'run')} ({shown}{', …' if len(runs) > 3 else ''})"


def _rule(rule: OutputRule) -> str:
    parts = [rule.path]
    if rule.key is not None:
        bounds = [f"at least {rule.at_least:g}"] if rule.at_least is not None else []
        bounds += [f"at most {rule.at_most:g}"] if rule.at_most is not None else []
        parts.append(f"{rule.key} {' and '.join(bounds) or 'must be present'}")
    if rule.check is not None:
        parts.append(f"checked by {' '.join(_quoted(rule.check))}")
    return ", ".join(parts) if len(parts) > 1 else f"{rule.path}, must exist and not be empty"


def _quoted(words: Sequence[str]) -> list[str]:
    import shlex

    return [shlex.quote(word) for word in words]


def _as_json(
    parsed: Parsed | None, mistakes: Sequence[Mistake], warnings: Sequence[Mistake]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ok": not mistakes,
        "mistakes": [asdict(mistake) for mistake in mistakes],
        "warnings": [asdict(warning) for warning in warnings],
    }
    if parsed is None:
        return found
    from outlast.domain.model import attempts_needed
    from outlast.spec.command import arguments
    from outlast.spec.schema import LimitsKeys

    spec = parsed.spec
    return {
        **found,
        "notes": parsed.notes,
        "name": spec.name,
        "cluster": parsed.cluster.name,
        "code": spec.code,
        "resources": asdict(spec.resources),
        "job_time": spec.job_time,
        "attempts_needed": attempts_needed(spec),
        # Without those of a gateway, which no params.yaml has.
        "limits": {key: getattr(spec.limits, key) for key in LimitsKeys.model_fields},
        "checkpoints": asdict(spec.checkpoints),
        "parallel": spec.parallel,
        "outputs": [asdict(rule) for rule in spec.outputs],
        "other_outputs": spec.other_outputs,
        "env": [*spec.env, *spec.env_files],
        "data": [
            {**item.to_dict(), "name": item.name, "why": method.why}
            for item, method in zip(spec.data, parsed.data_methods, strict=True)
        ],
        "runs": [{"name": run.name, "params": dict(run.params)} for run in parsed.runs],
        "first_command": arguments(spec.command, parsed.runs[0].params),
    }
