"""Reading an experiment directory: a validated `Spec` and its runs, or all mistakes at once."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from outlast import units
from outlast.domain.model import Resources, RunPlan, Spec
from outlast.node.output_rule import OutputRule
from outlast.spec import code_files, resource_checks, runs
from outlast.spec import command as commands
from outlast.spec.checkpoint_keys import checkpoint_warnings, read_checkpoints
from outlast.spec.cluster_library import ClusterProfile, Library, find_cluster
from outlast.spec.command_checks import command_mistakes, command_warnings
from outlast.spec.data_keys import read_data
from outlast.spec.data_methods import DataMethod
from outlast.spec.document import Document, Mapping
from outlast.spec.env_keys import read_env
from outlast.spec.limit_keys import limit_warnings, read_limits
from outlast.spec.mistakes import BadSpec, Mistake, did_you_mean, shorten
from outlast.spec.own_code import init_command
from outlast.spec.schema import OutputKeys, ParamsKeys
from outlast.spec.template_defaults import template_defaults
from outlast.spec.token_keys import check_token_file
from outlast.spec.validate import validate
from outlast.spec.yamlfile import load

FILE = "params.yaml"


@dataclass(frozen=True)
class Parsed:
    """A valid experiment."""

    spec: Spec
    runs: tuple[RunPlan, ...]
    cluster: ClusterProfile
    #: Settings that are allowed but probably not meant.
    warnings: tuple[Mistake, ...] = ()
    #: Consequences of the cluster's limits; nothing is wrong.
    notes: tuple[str, ...] = ()
    #: For each of `spec.data`, the method that brings it into a job, and why.
    data_methods: tuple[DataMethod, ...] = ()


def read(
    directory: Path, cluster: str | None = None, parameters: AnyMapping[str, str] | None = None
) -> Parsed:
    """Read `params.yaml` of an experiment directory. Raises BadSpec with all mistakes.

    `cluster` overrides the one in the file. `parameters` are the names and values for the placeholders in the
    commands of a template, which has one run and no sweep; without them, the defaults in its `template.yaml`.
    """
    return _ParamsReader(directory, _load(directory), cluster, parameters).parsed()


def _load(directory: Path) -> Document:
    path = directory / FILE
    try:
        exists, is_directory = os.path.lexists(path), directory.is_dir()
    except ValueError:
        exists = is_directory = False
    if not is_directory:
        reason = "is not a directory" if os.path.lexists(directory) else "does not exist"
        hint = (
            f"`outlast init {directory}` creates an experiment that runs"
            if reason == "does not exist"
            else ""
        )
        raise BadSpec([Mistake(str(directory), None, None, reason, hint)])
    if not exists:
        hint = f"`{init_command(directory)}` writes one that runs"
        raise BadSpec([Mistake(FILE, None, None, f"not found in {directory}", hint)])
    return load(path, FILE, f"remove it, then `outlast init {directory}` writes one that runs")


class _ParamsReader:
    """Reads one file and collects its mistakes and warnings."""

    def __init__(
        self,
        directory: Path,
        document: Document,
        cluster: str | None,
        parameters: AnyMapping[str, str] | None,
    ) -> None:
        self.directory = directory
        self.document = document
        self.cluster = cluster
        #: Of a template that is read for requests.
        self.is_template = parameters is not None
        self.given = parameters or {}
        self.keys, mistakes = validate(ParamsKeys, document)
        self.mistakes = [*document.mistakes, *mistakes]
        self.warnings: list[Mistake] = []
        if parameters is None and not self._written("sweep") and not self._written("runs"):
            self.given = template_defaults(directory, self.keys.command + " " + self.keys.checkpoints.resume)

    def parsed(self) -> Parsed:
        name = self._name()
        plans = self._runs(name)
        outputs = self._outputs()
        self._command(plans)
        code = self._code(plans)
        cluster = self._cluster()
        keys = self.keys
        data = read_data(
            self.document,
            keys.data,
            self.directory,
            cluster.scheduler if cluster else "",
            keys.resources.disk,
        )
        self.mistakes += data.mistakes
        self.warnings += data.warnings
        checkpoints, mistakes = read_checkpoints(self.document, keys.checkpoints)
        self._placeholders(("checkpoints", "resume"), keys.checkpoints.resume)
        env = read_env(self.document, self.directory, cluster.scheduler if cluster else "")
        self.mistakes += [*mistakes, *env.mistakes]
        self.warnings += env.warnings
        spec = Spec(
            name=name,
            command=keys.command,
            code=code,
            cluster=cluster.name if cluster else "",
            profile=cluster.as_json() if cluster else {},
            resources=Resources(**keys.resources.model_dump()),
            parallel=keys.parallel if self._given("parallel") else None,
            outputs=outputs,
            other_outputs=keys.other_outputs,
            data=tuple(data.items),
            limits=read_limits(keys.limits),
            checkpoints=checkpoints,
            env=env.values,
            env_files=env.files,
        )
        self._times(spec, cluster)
        if cluster is not None:
            self._transfer(spec, cluster)
            self._token(cluster)
        if self.mistakes or cluster is None:
            # Two checks may find the same mistake.
            found = dict.fromkeys(self.mistakes)
            raise BadSpec(sorted(found, key=lambda one: (one.file != FILE, one.file, one.line or 0)))
        warnings = sorted(dict.fromkeys(self.warnings), key=lambda one: one.line or 0)
        notes = tuple(note for note in (resource_checks.note_on_attempts(spec),) if note)
        return Parsed(spec, tuple(plans), cluster, tuple(warnings), notes, tuple(data.methods))

    def _given(self, key: str) -> bool:
        """Return True if a top-level key was written and its value is valid."""
        return key in self.keys.model_fields_set

    def _written(self, key: str) -> bool:
        return key in self.document.root.entries

    def _mistake(
        self, path: tuple[str | int, ...], text: str, hint: str = "", *, of_key: bool = False
    ) -> None:
        self.mistakes.append(self.document.mistake(path, text, hint, of_key=of_key))

    def _warn(self, path: tuple[str | int, ...], text: str, hint: str = "") -> None:
        self.warnings.append(self.document.mistake(path, text, hint))

    def _name(self) -> str:
        if not self._given("name"):
            return runs.default_name(self.directory.resolve().name)
        text, _, hint = runs.name_mistake(self.keys.name).partition("; ")
        if text:
            self._mistake(("name",), text, hint)
        return self.keys.name

    def _runs(self, name: str) -> list[RunPlan]:
        for key in ("runs", "sweep"):
            if self.is_template and self._written(key):
                self._mistake((key,), "is not for templates: each request is one run", "remove it")
        if self.is_template or self.given:
            return [RunPlan(name, dict(self.given))]
        if self._written("runs") and self._written("sweep"):
            lines = {key: self.document.line((key,), of_key=True) or 0 for key in ("runs", "sweep")}
            first, second = sorted(lines, key=lambda key: lines[key])
            self._mistake(
                (second,), f"cannot be combined with {first} (line {lines[first]})", "keep one of them"
            )
        if not self._written("sweep"):
            return runs.plan_runs(name, self.keys.runs)
        plans, mistakes, warnings = runs.plan_sweep(name, self.document)
        self.mistakes += mistakes
        self.warnings += warnings
        return plans

    def _parameters(self) -> list[str] | None:
        """Return the names of the sweep's parameters, or the template's; None if the sweep is invalid."""
        if self.is_template or self.given:
            return list(self.given)
        if not self._written("sweep"):
            return []
        node = self.document.find(("sweep",))
        return list(node.entries) if isinstance(node, Mapping) else None

    def _placeholders(self, at: tuple[str, ...], command: str) -> list[str]:
        """Return the placeholders in a command; those that are no parameter are mistakes."""
        parameters, used = self._parameters(), commands.placeholders(command)
        if parameters is None:
            return used
        for name in used:
            if name not in parameters:
                hint = did_you_mean(name, parameters) or f"write {{{{{name}}}}} for literal braces"
                owner = "template.yaml" if self.is_template or self.given else "sweep"
                known = (
                    f"{owner} has {', '.join(map(shorten, parameters))}"
                    if parameters
                    else f"there is no {owner}"
                    if owner == "sweep"
                    else "template.yaml declares none"
                )
                self._mistake(at, f"unknown parameter {{{name}}}: {known}", hint)
        return used

    def _command(self, plans: Iterable[RunPlan]) -> None:
        if not self._written("command"):
            self._mistake(
                (), "command: is missing", "write the command that trains, such as command: python train.py"
            )
        if not self._given("command"):
            return
        command, parameters = self.keys.command, self._parameters()
        for text, hint in command_mistakes(command, self.directory):
            self._mistake(("command",), text, hint)
        if parameters is None:
            return
        used = self._placeholders(("command",), command)
        for name in parameters:
            if name not in used and self.document.find(("sweep", name)) is not None:
                self._warn(
                    ("sweep", name),
                    f"the command does not use {{{shorten(name)}}}: its runs differ only in name",
                )
        for text, hint in command_warnings(command, self.directory):
            self._warn(("command",), text, hint)

    def _outputs(self) -> tuple[OutputRule, ...]:
        return tuple(self._output(index, keys) for index, keys in enumerate(self.keys.outputs))

    def _output(self, index: int, keys: OutputKeys) -> OutputRule:
        at, given = ("outputs", index), keys.model_fields_set
        node = self.document.find(at)
        if isinstance(node, Mapping) and node.entries.keys() <= OutputKeys.model_fields.keys() - {"path"}:
            self._mistake(at, "path is missing", "write {path: model.npz, …}")
        elif "path" in given and (wrong := code_files.relative_path_mistake(keys.path)):
            self._mistake(
                (*at, "path"), f'"{shorten(keys.path)}" {wrong}', "outputs are in $OUTLAST_OUTPUT_DIR"
            )
        elif "path" in given and re.search(r"[*?[]", keys.path):
            text = f'"{shorten(keys.path)}" is taken literally'
            self._warn((*at, "path"), text, "patterns are not expanded")
        for bound in sorted(given & {"at_least", "at_most"}):
            if "key" not in given:
                hint = "add key: with the name of a number in the JSON file"
                self._mistake((*at, bound), "needs a key to compare", hint)
        if {"at_least", "at_most"} <= given and keys.at_least > keys.at_most:
            self._mistake((*at, "at_least"), f"{keys.at_least:g} is more than at_most, {keys.at_most:g}")
        if "key" in given and not keys.path.endswith(".json"):
            self._warn((*at, "key"), f"{shorten(keys.path)} will be read as JSON, whatever its name")
        check = None
        if "check" in given:
            mistakes = command_mistakes(keys.check, self.directory)
            for text, hint in mistakes:
                self._mistake((*at, "check"), text, hint)
            for name in set(commands.placeholders(keys.check)) & set(self._parameters() or ()):
                self._mistake((*at, "check"), f"{{{name}}} is replaced only in the command, not in checks")
            check = tuple(commands.split(keys.check)) if not mistakes else ()
        return OutputRule(
            path=posixpath.normpath(keys.path),
            key=keys.key if "key" in given else None,
            at_least=keys.at_least if "at_least" in given else None,
            at_most=keys.at_most if "at_most" in given else None,
            check=check,
        )

    def _code(self, plans: Iterable[RunPlan]) -> tuple[str, ...]:
        """Return the code that travels with the job: the list, or else the files that commands name."""
        if self._written("code") and not self._given("code"):
            return ()
        valid = [(index, entry) for index, entry in enumerate(self.keys.code) if entry]
        wrong = False
        for index, entry in valid:
            text, hint = code_files.code_mistake(entry, self.directory)
            if text:
                wrong = True
                self._mistake(("code", index), text, hint)
        if len(valid) < len(self.keys.code):
            # An invalid entry may have been meant to cover any of the files below.
            return ()
        used = self._used_files(plans)
        if not self._given("code"):
            named = list(used)
            return code_files.normalise([*named, *code_files.needed_files(named, self.directory)])
        for path, user in used.items():
            if not code_files.covers(self.keys.code, path):
                label = "the command" if user == ("command",) else "a check"
                text = f"{shorten(path)} is used by {label} but is not sent with the job"
                self._mistake(user, text, f"add {shorten(path)} to code")
        if not wrong:
            for path, how in code_files.needed_files(used, self.directory).items():
                if not code_files.covers(self.keys.code, path):
                    text = f"{shorten(path)} {how} but is not sent with the job"
                    self._warn(("code",), text, f"add {shorten(path)} to code")
        return code_files.normalise(self.keys.code)

    def _used_files(self, plans: Iterable[RunPlan]) -> dict[str, tuple[str | int, ...]]:
        """Return the files of the directory that commands name, and the path of that command."""
        lines: list[tuple[tuple[str | int, ...], str]] = [(("command",), self.keys.command)]
        lines += [(("outputs", index, "check"), one.check) for index, one in enumerate(self.keys.outputs)]
        written = set(code_files.normalise(one.path for one in self.keys.outputs if one.path))
        used: dict[str, tuple[str | int, ...]] = {}
        for user, line in lines:
            try:
                words = commands.split(line)
            except ValueError:
                # A quote that is not closed is reported with the command.
                continue
            expanded = [word for word in words if not commands.placeholders(word)]
            for word in words:
                names = commands.placeholders(word)
                if names and user == ("command",):
                    filled = [one.params for one in islice(plans, 1000) if one.params.keys() >= set(names)]
                    expanded += sorted({commands.fill(word, params) for params in filled})
            for path in code_files.named_files(expanded, self.directory):
                if path not in written:
                    used.setdefault(path, user)
        return used

    def _cluster(self) -> ClusterProfile | None:
        if self.cluster is None and self._written("cluster") and not self._given("cluster"):
            return None
        name = self.keys.cluster if self.cluster is None else self.cluster
        profile, hint, mistakes = find_cluster(name, self.directory)
        self.mistakes += mistakes
        if profile is None:
            text = f'"{shorten(name)}" is not a cluster'
            if self.cluster is None:
                self._mistake(("cluster",), text, hint)
            else:
                self.mistakes.append(Mistake("--cluster", None, None, text, hint))
            return None
        if not mistakes:
            # With a mistake in clusters.yaml the hosts are not certain.
            text, hint = resource_checks.too_small_hosts(profile, self.keys.resources)
            if text:
                self._mistake(("resources",), text, hint)
        return profile

    def _transfer(self, spec: Spec, cluster: ClusterProfile) -> None:
        if cluster.site.largest_transfer is None:
            return
        sizes = resource_checks.native_input(spec, cluster, self.directory)
        text, hint = resource_checks.too_much_input(sizes, cluster.site.largest_transfer)
        if text:
            self._mistake(("data",) if sizes["data"] else ("code",), text, hint)

    def _token(self, cluster: ClusterProfile) -> None:
        if not self.keys.data:
            return
        known = Library(self.directory).find(cluster.name)
        mistakes, warnings = check_token_file(known) if known is not None else ([], [])
        self.mistakes += mistakes
        self.warnings += warnings

    def _times(self, spec: Spec, cluster: ClusterProfile | None) -> None:
        at = ("resources", "time")
        durations = [("checkpoints", key) for key in ("grace", "every", "shortest", "longest")]
        for path in (at, ("limits", "total"), *durations):
            text = self.document.text(path)
            if text and units.is_minutes_and_seconds(text):
                self._warn(
                    path, f"{text} is read as minutes and seconds, as Slurm does", "write hours as 24:00:00"
                )
        if cluster is not None and cluster.scheduler == "slurm" and spec.job_time < 60:
            self._warn(at, "is very short for Slurm, which counts in minutes")
        if cluster is not None and cluster.scheduler == "local" and spec.job_time < 1:
            self._warn(at, "is less than a second; starting alone may take longer")
        self._total(spec)
        self.warnings += limit_warnings(self.document, self.keys.limits, spec)
        for place, text, hint in resource_checks.too_few_attempts(spec):
            self._warn(place, text, hint)
        self.warnings += checkpoint_warnings(self.document, self.keys.checkpoints, spec)

    def _total(self, spec: Spec) -> None:
        """Warn if `limits.total` is shorter than an attempt: no other attempt follows once it has passed."""
        time, total = spec.job_time, spec.limits.total
        if total >= time or time < spec.resources.time:
            return
        follows = "an attempt that uses all of its time is the run's last"
        if "total" in self.keys.limits.model_fields_set:
            text = f"is shorter than resources.time, {units.show_duration(time)}: {follows}"
            self._warn(("limits", "total"), text)
        else:
            text = f"is longer than limits.total, {units.show_duration(total)}: {follows}"
            self._warn(("resources", "time"), text)
