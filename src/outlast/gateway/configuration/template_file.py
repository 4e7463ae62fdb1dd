"""Reading the templates of a gateway: validated ones, or all mistakes in all of them at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from outlast import units
from outlast.gateway.configuration.argument_safety import argument_mistakes
from outlast.gateway.configuration.host_names import authority_of, host_mistake, is_tls
from outlast.gateway.configuration.parameter_values import example_of
from outlast.gateway.configuration.template_entries import read_inputs, read_parameters
from outlast.gateway.configuration.template_keys import TemplateKeys
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.settings import Ceilings, GatewaySettings, Quota, Template
from outlast.gateway.url_paths import leads_out
from outlast.spec import BadSpec, Mistake, Parsed, read
from outlast.spec.code_files import relative_path_mistake
from outlast.spec.command import placeholders
from outlast.spec.document import Document, Path_
from outlast.spec.mistakes import shorten
from outlast.spec.template_defaults import FILE
from outlast.spec.validate import validate
from outlast.spec.yamlfile import load


def read_templates(directory: GatewayDirectory, settings: GatewaySettings) -> dict[str, Template]:
    """Return the templates that the settings list, by name. Raise BadSpec with all mistakes in all files."""
    found: dict[str, Template] = {}
    mistakes: list[Mistake] = []
    for name in settings.templates:
        try:
            found[name] = read_template(directory.template(name), name, settings)
        except BadSpec as bad:
            mistakes += bad.mistakes
    if mistakes:
        raise BadSpec(mistakes)
    return found


def read_template(directory: Path, name: str, settings: GatewaySettings) -> Template:
    """Return the template in a directory. Raise BadSpec with all mistakes in its two files."""
    shown = f"templates/{name}"
    if not os.path.lexists(directory / FILE):
        text = f"not found in {directory}"
        hint = "a template has template.yaml and params.yaml; gateway.yaml lists it under templates:"
        raise BadSpec([Mistake(f"{shown}/{FILE}", None, None, text, hint)])
    reader = _TemplateReader(directory, name, load(directory / FILE, f"{shown}/{FILE}"), settings)
    template = reader.template()
    mistakes = sorted(dict.fromkeys(reader.mistakes), key=lambda one: one.line or 0)
    try:
        parsed = read_params(template)
    except BadSpec as bad:
        raise BadSpec([*mistakes, *(_in_directory(shown, one) for one in bad.mistakes)]) from None
    reader.compare(template, parsed)
    mistakes = sorted(dict.fromkeys(reader.mistakes), key=lambda one: one.line or 0)
    if mistakes:
        raise BadSpec(mistakes)
    return template


def read_params(template: Template) -> Parsed:
    """Return what the template's params.yaml means, with some value for each parameter. Raise BadSpec."""
    values = {name: example_of(parameter) for name, parameter in template.parameters.items()}
    return read(template.directory, parameters=values)


def _in_directory(shown: str, mistake: Mistake) -> Mistake:
    """Return a mistake with its file's place below the gateway's directory."""
    is_beside = "/" not in mistake.file and mistake.file.endswith(".yaml")
    return replace(mistake, file=f"{shown}/{mistake.file}") if is_beside else mistake


class _TemplateReader:
    """Reads one template.yaml and collects its mistakes."""

    def __init__(self, directory: Path, name: str, document: Document, settings: GatewaySettings) -> None:
        self.directory = directory
        self.name = name
        self.document = document
        self.application = authority_of(settings.application.url) if settings.application.url else ""
        #: It has a log-in, but none of its tokens is ever sent from a node.
        self.sends_no_token = bool(settings.application.login) and not is_tls(settings.application.url)
        self.keys, mistakes = validate(TemplateKeys, document)
        self.mistakes = [*document.mistakes, *mistakes]

    def template(self) -> Template:
        parameters, mistakes = read_parameters(self.document)
        inputs, more = read_inputs(self.document, self.application)
        self.mistakes += [*mistakes, *more]
        for name in inputs if self.sends_no_token else ():
            if inputs[name].token:
                text = "the application's url is plain http, over which jobs send no token"
                hint = "write token: no, or give an https url, and ca_file for an authority of your own"
                self._mistake(("inputs", name), text, hint, of_key=True)
        keys = self.keys
        return Template(
            name=self.name,
            directory=self.directory,
            title=keys.title,
            parameters=parameters,
            inputs=inputs,
            ceilings=Ceilings(**keys.ceilings.model_dump()),
            quota=Quota(**keys.quota.model_dump()),
            users=tuple(user for user in keys.users if user),
            answer=self._answer(),
            upload_hosts=self._upload_hosts(),
            upload_path=self._upload_path(),
            upload_directory=self._upload_directory(),
        )

    def _mistake(self, path: Path_, text: str, hint: str = "", *, of_key: bool = False) -> None:
        self.mistakes.append(self.document.mistake(path, text, hint, of_key=of_key))

    def _answer(self) -> Mapping[str, str]:
        for name, path in self.keys.answer.items():
            wrong = relative_path_mistake(path.removesuffix("?"))
            if wrong:
                wrong = wrong.replace("the experiment directory", "the results")
                self._mistake(("answer", name), f'"{shorten(path)}" {wrong}', "it starts from results/RUN")
            if not name.isprintable() or not name:
                self._mistake(("answer", name), "is not a name", of_key=True)
        return dict(self.keys.answer)

    def _upload_hosts(self) -> tuple[str, ...]:
        for index, host in enumerate(self.keys.uploads.hosts):
            text, hint = host_mistake(host) if host else ("", "")
            if text:
                path: Path_ = ("uploads", "hosts", index)
                self._mistake(
                    path if self.document.find(path) else path[:-1], f'"{shorten(host)}" {text}', hint
                )
        return tuple(host.lower() for host in self.keys.uploads.hosts if host)

    def _upload_path(self) -> str:
        text, path = self.keys.uploads.path, ("uploads", "path")
        if text and (not text.startswith("/") or leads_out(text) or set(text) & set("?#%\\")):
            hint = "write it like /uploads/results/: it is below the application's url"
            self._mistake(path, f'"{shorten(text)}" is not a path', hint)
        elif text and self.application not in (host.lower() for host in self.keys.uploads.hosts):
            hint = f"list {self.application} under hosts:" if self.application else "give it in gateway.yaml"
            self._mistake(path, "the application's host is not one of the hosts", hint)
        return text

    def _upload_directory(self) -> Path | None:
        text = self.keys.uploads.directory
        if not text:
            return None
        found = self.directory / Path(text).expanduser()
        if not found.is_dir():
            self._mistake(("uploads", "directory"), f"{found} is not a directory", "create it")
        return found

    def compare(self, template: Template, parsed: Parsed) -> None:
        """Report what template.yaml and params.yaml contradict each other in."""
        spec = parsed.spec
        used = {*placeholders(spec.command), *placeholders(spec.checkpoints.resume)}
        for name in template.parameters:
            if name not in used:
                text = "params.yaml uses it nowhere, so it would have no effect"
                self._mistake(("parameters", name), text, f"write {{{name}}} in the command", of_key=True)
        for command in (spec.command, spec.checkpoints.resume):
            for name, text, hint in argument_mistakes(command, template.parameters):
                self._mistake(("parameters", name), text, hint, of_key=True)
        ceilings = template.ceilings
        for key, show in _SHOWN.items():
            start, most = getattr(spec.resources, key), getattr(ceilings, key)
            if start > most:
                text = f"is {show(most)}, but params.yaml begins with {show(start)}"
                self._mistake(("ceilings", key), text, "begin with less: a run that lacks memory gets more")
        if ceilings.total < ceilings.time:
            text = f"{units.show_limit(ceilings.total)} is less than time, which one attempt may take"
            self._mistake(("ceilings", "total"), text)


def _show_number(value: float) -> str:
    return f"{value:g}"


#: The resources with a ceiling, and how their amounts are shown.
_SHOWN = {
    "cpus": _show_number,
    "gpus": _show_number,
    "memory": units.show_size,
    "disk": units.show_size,
    "time": units.show_limit,
}
