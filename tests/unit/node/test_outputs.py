"""Only outputs that keep every rule count as a result, and every broken rule is reported."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from outlast.node.output_rule import OutputRule
from outlast.node.outputs import output_tree, validation
from outlast.node.outputs.collection import OutputCollection


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    output, working = tmp_path / "output", tmp_path / "job"
    output.mkdir()
    working.mkdir()
    return output, working


def _sentences(
    places: tuple[Path, Path],
    *rules: OutputRule,
    check: str | None = None,
    ran: list[Sequence[str]] | None = None,
) -> list[str]:
    def run_check(command: Sequence[str]) -> str | None:
        if ran is not None:
            ran.append(command)
        return check

    OutputCollection([rule.path for rule in rules], str(places[0]), str(places[1])).collect()
    found = validation.validate(rules, str(places[0]), run_check)
    return [problem.sentence for problem in found]


def test_an_output_must_exist_and_not_be_empty(places: tuple[Path, Path]) -> None:
    (places[0] / "empty").write_text("")
    (places[0] / "hollow").mkdir()
    (places[0] / "good").write_text("x")
    rules = [OutputRule(name) for name in ("none", "empty", "hollow", "good")]
    found = _sentences(places, *rules)
    assert [sentence.split()[0] for sentence in found] == ["none", "empty", "hollow"]
    assert "is missing" in found[0]


def test_an_output_in_the_working_directory_is_moved_to_the_output_directory(
    places: tuple[Path, Path],
) -> None:
    (places[1] / "sub").mkdir()
    (places[1] / "sub" / "model.npz").write_text("weights")
    assert _sentences(places, OutputRule("sub/model.npz")) == []
    assert (places[0] / "sub" / "model.npz").read_text() == "weights"
    assert (places[1] / "sub" / "model.npz").read_text() == "weights", "a check command looks for it there"


def test_the_name_of_a_directory_may_end_with_a_slash(places: tuple[Path, Path]) -> None:
    (places[1] / "out").mkdir()
    (places[1] / "out" / "a").write_text("x")
    assert _sentences(places, OutputRule("out/"), OutputRule("./out/.")) == []
    assert _names(places[0] / "out") == ["a"]


def test_the_output_directory_takes_precedence_over_the_working_directory(
    places: tuple[Path, Path],
) -> None:
    (places[0] / "a").write_text("right")
    (places[1] / "a").write_text("wrong")
    assert _sentences(places, OutputRule("a")) == []
    assert (places[0] / "a").read_text() == "right"


def test_an_output_that_was_carried_over_is_replaced_only_by_a_new_one(places: tuple[Path, Path]) -> None:
    output, working = places
    for name in ("rewritten", "touched", "given", "kept"):
        (output / name).mkdir()
        (output / name / "x").write_text("carried over")
    (working / "given").mkdir()
    (working / "given" / "x").write_text("came with the code")
    place = OutputCollection(["rewritten", "touched", "given", "kept", "."], str(output), str(working))
    place.record_initial_state()
    (output / "touched" / "y").write_text("new")
    for name in ("rewritten", "touched"):
        (working / name).mkdir()
        (working / name / "x").write_text("new")
    place.collect()
    place.collect()
    found = {name: (output / name / "x").read_text() for name in _names(output)}
    carried = "carried over"
    assert found == {"rewritten": "new", "touched": carried, "given": carried, "kept": carried}


@pytest.mark.parametrize("name", ["/etc/hostname", "../secret", "a/../../secret", ""])
def test_a_name_that_leaves_the_output_directory_never_passes(places: tuple[Path, Path], name: str) -> None:
    (places[0].parent / "secret").write_text("x")
    assert len(_sentences(places, OutputRule(name))) == 1


def test_a_link_out_of_the_output_directory_never_passes(places: tuple[Path, Path]) -> None:
    (places[0] / "a").symlink_to("/etc/hostname")
    (places[1] / "b").symlink_to("/etc/hostname")
    found = _sentences(places, OutputRule("a"), OutputRule("b"))
    assert "link out of" in found[0]
    assert "is missing" in found[1]


@pytest.mark.parametrize(
    ("content", "rule", "message"),
    [
        ('{"a": {"b": 0.91}}', OutputRule("m", key="a.b", at_least=0.9), None),
        ('{"a": {"b": 0.9}}', OutputRule("m", key="a.b", at_least=0.9, at_most=0.9), None),
        ('{"a": 0.89}', OutputRule("m", key="a", at_least=0.9), "at least 0.9"),
        ('{"a": 2}', OutputRule("m", key="a", at_most=1), "at most 1"),
        ('{"a": NaN}', OutputRule("m", key="a", at_least=0.0), "NaN"),
        ('{"a": NaN}', OutputRule("m", key="a"), "NaN"),
        ('{"a": Infinity}', OutputRule("m", key="a", at_least=0.0), "Infinity"),
        ('{"a": 1e400}', OutputRule("m", key="a", at_least=0.0), "Infinity"),
        ('{"a": NaN}', OutputRule("m", key="a", at_most=1e9), "NaN"),
        ('{"a": true}', OutputRule("m", key="a", at_least=0.5), "not a number"),
        ('{"a": "0.99"}', OutputRule("m", key="a", at_least=0.5), "not a number"),
        ('{"a": "yes"}', OutputRule("m", key="a"), None),
        ('{"a": 1}', OutputRule("m", key="b"), "no key b"),
        ('{"a": [1]}', OutputRule("m", key="a.0"), "no key"),
        ("[1]", OutputRule("m", key="a"), "no key"),
        ("{", OutputRule("m", key="a"), "JSON"),
        ("[" * 100_000, OutputRule("m", key="a"), "JSON"),
        ('{"a": 1}', OutputRule("m", at_least=0), "no key"),
    ],
)
def test_a_number_in_a_json_file_must_keep_its_bounds(
    places: tuple[Path, Path], content: str, rule: OutputRule, message: str | None
) -> None:
    (places[0] / "m").write_text(content)
    found = _sentences(places, rule)
    assert found == [] if message is None else message in found[0]


def test_a_json_file_that_is_too_large_is_not_read(places: tuple[Path, Path]) -> None:
    with open(places[0] / "m", "wb") as file:
        file.truncate(65 * 1024 * 1024)
    assert "too large" in _sentences(places, OutputRule("m", key="a"))[0]


def test_the_users_own_check_decides_and_runs_after_all_outputs_were_collected(
    places: tuple[Path, Path],
) -> None:
    (places[0] / "m").write_text("x")
    ran: list[Sequence[str]] = []
    rule = OutputRule("m", check=("python", "check.py"))
    assert _sentences(places, rule, ran=ran) == []
    assert ran == [("python", "check.py")]
    assert _sentences(places, rule, check="exited with 2") == [
        "m was not accepted: the check `python check.py` exited with 2."
    ]


def test_a_missing_output_is_not_checked(places: tuple[Path, Path]) -> None:
    ran: list[Sequence[str]] = []
    assert len(_sentences(places, OutputRule("m", check=("true",)), ran=ran)) == 1
    assert ran == []


def test_a_broken_rule_has_the_same_identity_for_every_value(places: tuple[Path, Path]) -> None:
    rule = OutputRule("m", key="a", at_least=0.9)
    rules = set()
    for value in (0.1, 0.2):
        (places[0] / "m").write_text(json.dumps({"a": value}))
        rules |= {p.rule for p in validation.validate([rule], str(places[0]), lambda _: None)}
    assert len(rules) == 1


def test_a_link_to_a_file_in_the_directory_becomes_a_file_and_other_links_and_pipes_are_removed(
    places: tuple[Path, Path],
) -> None:
    output = places[0]
    (output / "step-100").write_text("weights")
    (output / "best").symlink_to("step-100")
    (output / "secret").symlink_to("/etc/hostname")
    (output / "folder").symlink_to("/etc")
    (output / "dangling").symlink_to("nothing")
    os.mkfifo(output / "pipe")
    warnings = output_tree.normalize_output(str(output))
    assert _names(output) == ["best", "step-100"]
    assert not (output / "best").is_symlink()
    assert (output / "best").read_text() == "weights"
    assert len(warnings) == 4
