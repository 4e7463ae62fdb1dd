"""The sections `parameters:` and `inputs:` of template.yaml, whose entries have free names."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace

from outlast.gateway.configuration.host_names import host_mistake
from outlast.gateway.configuration.parameter_values import value_mistake
from outlast.gateway.configuration.template_keys import InputKeys, ParameterKeys
from outlast.gateway.settings import InputRule, Parameter
from outlast.node.staging.http.host_rules import is_private_name
from outlast.spec.code_files import relative_path_mistake
from outlast.spec.document import Document, Path_, Scalar
from outlast.spec.document import Mapping as MappingNode
from outlast.spec.document import Sequence as SequenceNode
from outlast.spec.mistakes import Mistake, shorten
from outlast.spec.validate import validate

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_NAME = 100
#: The types that a key is for.
_FOR = {
    **dict.fromkeys(("at_least", "at_most"), ("integer", "number")),
    **dict.fromkeys(("longest", "pattern"), ("text",)),
    "choices": ("choice",),
}


def read_parameters(document: Document) -> tuple[dict[str, Parameter], list[Mistake]]:
    """Return the parameters by name, and the mistakes; what is wrong in a parameter is left out of it."""
    mistakes = list(_group_mistakes(document, "parameters", "{epochs: {type: integer, at_least: 1}}"))
    found = {}
    for name in _names(document, "parameters"):
        reader = _ParameterReader(document, ("parameters", name))
        found[name] = reader.parameter()
        mistakes += reader.mistakes
        if not _NAME.fullmatch(name):
            hint = "use letters, digits and _; the command has it in braces"
            mistakes.append(
                document.mistake(("parameters", name), "is not a valid parameter name", hint, of_key=True)
            )
    return found, mistakes


def read_inputs(document: Document, application: str) -> tuple[dict[str, InputRule], list[Mistake]]:
    """Return the inputs by name, and the mistakes. `application` is the host of the application, if any."""
    mistakes = list(_group_mistakes(document, "inputs", "{pages: {to: pages.zip}}"))
    found: dict[str, InputRule] = {}
    places: dict[str, str] = {}
    for name in _names(document, "inputs"):
        reader = _InputReader(document, ("inputs", name), application)
        found[name] = rule = reader.rule()
        if not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
            reader.mistake((), f"is not a name of 1 to {_LONGEST_NAME} printable characters", of_key=True)
        for other, before in places.items():
            if rule.to and _collide(rule.to, before):
                reader.mistake(("to",), f"{rule.to} and {before} of {shorten(other)} are in each other's way")
        places[name] = rule.to
        mistakes += reader.mistakes
    return found, mistakes


def _collide(one: str, other: str) -> bool:
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")


def _names(document: Document, key: str) -> list[str]:
    node = document.find((key,))
    return list(node.entries) if isinstance(node, MappingNode) else []


def _group_mistakes(document: Document, key: str, example: str) -> Iterator[Mistake]:
    node = document.find((key,))
    if node is not None and not isinstance(node, MappingNode):
        yield document.mistake((key,), "must be a group of names", f"write {key}: {example}")


class _EntryReader:
    """Collects the mistakes of one entry."""

    def __init__(self, document: Document, at: Path_) -> None:
        self.document = document
        self.at = at
        self.mistakes: list[Mistake] = []

    def given(self, *path: str | int) -> bool:
        return self.document.find((*self.at, *path)) is not None

    def mistake(self, path: Path_, text: str, hint: str = "", *, of_key: bool = False) -> None:
        self.mistakes.append(self.document.mistake((*self.at, *path), text, hint, of_key=of_key))

    @property
    def is_group(self) -> bool:
        return isinstance(self.document.find(self.at), MappingNode)


class _ParameterReader(_EntryReader):
    def parameter(self) -> Parameter:
        keys, self.mistakes = validate(ParameterKeys, self.document, self.at)
        given = keys.model_fields_set
        if self.is_group and not self.given("type"):
            self.mistake((), "type is missing", "write type: integer, number, text, choice or yes-no")
        if "type" in given:
            for key, types in _FOR.items():
                if self.given(key) and keys.type not in types:
                    self.mistake((key,), f"is not for the type {keys.type}", "remove it")
        if {"at_least", "at_most"} <= given and keys.at_least > keys.at_most:
            self.mistake(("at_least",), f"{keys.at_least:g} is more than at_most, {keys.at_most:g}")
        if keys.pattern:
            try:
                re.compile(keys.pattern)
            except re.error as error:
                self.mistake(("pattern",), f"is not a regular expression: {error}")
                keys = keys.model_copy(update={"pattern": ""})
        parameter = Parameter(
            type=keys.type,
            at_least=keys.at_least if "at_least" in given else None,
            at_most=keys.at_most if "at_most" in given else None,
            choices=self._choices() if keys.type == "choice" else (),
            longest=keys.longest,
            pattern=keys.pattern,
            secret=keys.secret == "yes",
        )
        is_typed = "type" in given and (keys.type != "choice" or parameter.choices)
        return self._with_default(parameter) if is_typed and self.given("default") else parameter

    def _choices(self) -> tuple[str, ...]:
        node = self.document.find((*self.at, "choices"))
        if not isinstance(node, SequenceNode) or not node.items:
            self.mistake(("choices",) if node else (), "choices must be a list", "write choices: [a, b]")
            return ()
        for index, item in enumerate(node.items):
            if not isinstance(item, Scalar) or not item.text or not item.text.isprintable():
                self.mistake(("choices", index), "must be a text or a number")
        return tuple(item.text for item in node.items if isinstance(item, Scalar))

    def _with_default(self, parameter: Parameter) -> Parameter:
        node = self.document.find((*self.at, "default"))
        value: object = node.value if isinstance(node, Scalar) else None
        if parameter.type == "choice" and isinstance(node, Scalar):
            value = node.text
        if parameter.type == "yes-no" and value in ("yes", "no"):
            value = value == "yes"
        wrong = value_mistake(parameter, value)
        if wrong:
            self.mistake(("default",), wrong, "put quotes around it" if wrong == "must be text" else "")
            return parameter
        assert isinstance(value, (str, int, float))
        return replace(parameter, default=value)


class _InputReader(_EntryReader):
    def __init__(self, document: Document, at: Path_, application: str) -> None:
        super().__init__(document, at)
        self.application = application

    def rule(self) -> InputRule:
        keys, self.mistakes = validate(InputKeys, self.document, self.at)
        if self.is_group and not self.given("to"):
            self.mistake((), "to is missing", "write to: and its path below $OUTLAST_DATA_DIR")
        to = posixpath.normpath(keys.to) if keys.to else ""
        wrong = relative_path_mistake(keys.to) if keys.to else ""
        if wrong:
            wrong = wrong.replace("the experiment directory", "the data directory")
            self.mistake(("to",), f'"{shorten(keys.to)}" {wrong}', "it starts from $OUTLAST_DATA_DIR")
        hosts, private = self._hosts("hosts", keys.hosts), self._hosts("private_hosts", keys.private_hosts)
        for host in hosts:
            if is_private_name(host.rpartition(":")[0].strip("[]") or host) and host not in private:
                self.mistake(("hosts",), f"{host} is not a public address", "list it under private_hosts")
        if self.is_group and not (hosts or private or self.application):
            hint = "list hosts:, or give the application's url in gateway.yaml"
            self.mistake((), "it could be fetched from no host", hint)
        return InputRule(
            to=to,
            required=keys.required == "yes",
            most=keys.most,
            unpack=keys.unpack,
            hosts=hosts,
            private_hosts=private,
            token=keys.token == "yes",
        )

    def _hosts(self, key: str, hosts: list[str]) -> tuple[str, ...]:
        for index, host in enumerate(hosts):
            text, hint = host_mistake(host) if host else ("", "")
            if text:
                shown = "it" if "@" in host else f'"{shorten(host)}"'
                self.mistake((key, index) if self.given(key, index) else (key,), f"{shown} {text}", hint)
        return tuple(host.lower() for host in hosts if host)
