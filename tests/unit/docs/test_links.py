"""The documentation is whole: links lead somewhere, named tests exist, the reference leaves nothing out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from pydantic import BaseModel

from outlast import job_environment
from outlast.cli import group
from outlast.domain.ledger import Use
from outlast.domain.model import AttemptState, EntryKind, Outcome, Phase, RunState
from outlast.gateway.configuration.settings_keys import GatewayKeys, QueueKeys
from outlast.gateway.configuration.template_keys import ENTRIES, TemplateKeys
from outlast.journal import format as journal_format
from outlast.node.protocol import Variable
from outlast.spec.schema import ParamsKeys, ProfileKeys

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def words(page: str) -> set[str]:
    """All that stands in backticks or quotes in a page of the reference."""
    return set(re.findall(r"[`\"]([^`\"\n]+)[`\"]", text_of(DOCS / page)))


def headings(page: Path) -> dict[str, str]:
    """What follows each heading, up to the next one of its rank or above; by the heading's link name."""
    bare = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text_of(page))
    found = [(match.start(), len(match[1]), match[2]) for match in re.finditer(r"(?m)^(#+) (.+)$", bare)]
    sections = {}
    for index, (start, rank, title) in enumerate(found):
        end = next((place for place, other, _ in found[index + 1 :] if other <= rank), len(bare))
        sections[re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")] = bare[start:end]
    return sections


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_FENCE.sub("", text_of(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (heading and heading not in headings(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        ahead += [(page.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(text_of(page))]
    assert [named(page) for page in sorted(DOCS.rglob("*.md")) if page not in reached] == []


@cache
def functions_in(file: str) -> frozenset[str]:
    path = ROOT / file
    if not path.exists():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def promises() -> dict[str, str]:
    return {name: text for name, text in headings(DOCS / "promises.md").items() if name[0].isdigit()}


def test_there_are_ten_promises() -> None:
    numbers = sorted(int(name.partition("-")[0]) for name in promises())
    assert numbers == list(range(1, 11))


@pytest.mark.parametrize("promise", promises())
def test_the_tests_that_keep_a_promise_exist(promise: str) -> None:
    keepers = _NAMED_TEST.findall(promises()[promise])
    assert keepers
    assert [(file, test) for file, test in keepers if test not in functions_in(file)] == []


def every_command(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from every_command(found, "%s %s" % (name, below))


COMMANDS = dict(every_command(group, "outlast"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_section_with_all_of_its_options(name: str) -> None:
    page = DOCS / "reference/commands.md"
    section = text_of(page) if name == "outlast" else headings(page).get(name.replace(" ", "-"))
    assert section is not None, "no section is called %s" % name
    options = [
        option
        for parameter in COMMANDS[name].params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in parameter.opts
    ]
    assert [option for option in options if not re.search(r"[` ]%s\b" % re.escape(option), section)] == []


def test_no_section_is_about_a_command_that_does_not_exist() -> None:
    sections = [name for name in headings(DOCS / "reference/commands.md") if name.startswith("outlast-")]
    assert [name for name in sections if name.replace("-", " ") not in COMMANDS] == []


def every_key(model: Any, above: str = "") -> Iterator[str]:
    """`resources.cpus`; entries of lists and of groups with free names are left out of the path."""
    if isinstance(model, type) and issubclass(model, BaseModel):
        for name, field in model.model_fields.items():
            yield above + name
            yield from every_key(field.annotation, "%s%s." % (above, name))
    else:
        for part in get_args(model):
            yield from every_key(part, above)


def gateway_keys() -> Iterator[str]:
    for model, entries in ((GatewayKeys, {"queues": QueueKeys}), (TemplateKeys, ENTRIES)):
        yield from every_key(model)
        for name, entry in entries.items():
            yield from every_key(entry, name + ".")


KEYS = [
    *(("params", key) for key in every_key(ParamsKeys)),
    *(("clusters", key) for key in every_key(ProfileKeys)),
    *(("gateway", key) for key in gateway_keys()),
]


@pytest.mark.parametrize(("page", "key"), KEYS)
def test_every_key_is_in_the_reference(page: str, key: str) -> None:
    text = text_of(DOCS / "reference" / ("%s.md" % page))
    rows = [
        name
        for cell in re.findall(r"(?m)^\| (`[\w.`, ]+`) \|", text)
        for name in cell.strip("`").split("`, `")
    ]
    groups = {row.partition(".")[0] for row in rows}
    assert key in rows or key in groups


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_is_explained(outcome: Outcome) -> None:
    assert re.search(r"(?m)^\| `%s` \| .+ \| .+ \|$" % outcome.value, text_of(DOCS / "reference/outcomes.md"))


@pytest.mark.parametrize("use", Use)
def test_every_use_of_the_ledger_is_explained(use: Use) -> None:
    section = headings(DOCS / "reference/outcomes.md")["where-the-time-went"]
    assert re.search(r"(?m)^\| `%s` \| .+ \|$" % use.value, section)


@pytest.mark.parametrize(
    "variable", [value for name, value in vars(Variable).items() if not name.startswith("_")]
)
def test_every_variable_that_a_training_finds_is_explained(variable: str) -> None:
    assert variable in words("reference/training.md")


def test_every_state_phase_kind_and_table_is_named() -> None:
    states = {state.value for state in (*RunState, *AttemptState)}
    assert states <= words("reference/commands.md")
    tables = set(re.findall(r"CREATE TABLE (\w+)", journal_format.SCHEMA))
    assert {phase.value for phase in Phase} | {kind.value for kind in EntryKind} | tables <= words(
        "reference/files.md"
    )


def test_the_variables_that_go_along_with_a_job_are_those_that_are_listed() -> None:
    section = headings(DOCS / "explanation/how-it-works.md")["what-of-your-environment-reaches-a-job"]
    items = "\n".join(re.findall(r"(?m)^(?:- |  )(.+)$", section))
    listed = set(re.findall(r"`([A-Za-z_]+)`", items))
    assert listed == {*job_environment._NAMES, *job_environment._PREFIXES, *job_environment._PROXIES}
