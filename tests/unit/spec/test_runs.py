"""The runs of an experiment and their names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.domain.model import RunPlan
from outlast.spec.runs import default_name, name_mistake, plan_runs, plan_sweep
from outlast.spec.yamlfile import parse


def sweep(text: str, name: str = "digits") -> list[RunPlan]:
    plans, mistakes, _ = plan_sweep(name, parse(text, "params.yaml"))
    assert not mistakes
    return plans


def mistakes(text: str, name: str = "digits") -> list[str]:
    plans, found, _ = plan_sweep(name, parse(text, "params.yaml"))
    assert plans == []
    return [str(mistake) for mistake in found]


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("2026-11-15_A_digits", "digits"),
        ("2026-11-15_A2_my digits!", "my_digits_"),
        ("digits", "digits"),
        ("2026-11-15_A_", "2026-11-15_A_"),
        (".hidden", "hidden"),
        ("", "experiment"),
        ("..", "experiment"),
        ("é" * 300, "_" * 100),
    ],
)
def test_an_experiment_is_named_after_its_directory_without_the_date(directory: str, name: str) -> None:
    assert default_name(directory) == name


@given(st.text())
def test_the_name_made_from_any_directory_is_a_valid_one(directory: str) -> None:
    assert name_mistake(default_name(directory)) == ""


def test_one_run_has_the_experiments_name() -> None:
    assert plan_runs("digits", 1) == [RunPlan("digits")]


def test_several_runs_are_numbered_with_at_least_three_digits() -> None:
    names = [plan.name for plan in plan_runs("digits", 1000)]
    assert (names[0], names[11], names[998], names[999]) == (
        "digits-001",
        "digits-012",
        "digits-999",
        "digits-1000",
    )


@pytest.mark.parametrize("name", ["digits", "x" * 96, "x" * 97, "-" * 100])
def test_a_larger_number_of_runs_only_adds_runs(name: str) -> None:
    most = plan_runs(name, 10_001)
    for count in (2, 999, 1000, 9999):
        assert most[:count] == plan_runs(name, count)


def test_a_numbered_name_is_never_longer_than_a_hundred_characters() -> None:
    for name in ("x" * 100, "-" * 100, "1-0" * 33):
        names = {plan.name for plan in plan_runs(name, 10_001)}
        assert len(names) == 10_001
        assert {len(one) for one in names} == {100}


def test_a_sweep_is_a_grid_with_the_values_as_they_were_written() -> None:
    plans = sweep("sweep: {lr: [1e-3, 1e-2], width: ['32', 064]}")
    assert [plan.name for plan in plans] == [
        "digits-lr=1e-3-width=32",
        "digits-lr=1e-3-width=064",
        "digits-lr=1e-2-width=32",
        "digits-lr=1e-2-width=064",
    ]
    assert plans[1].params == {"lr": "1e-3", "width": "064"}


def test_characters_unsafe_in_file_names_are_replaced_in_names_and_kept_in_values() -> None:
    (plan,) = sweep("sweep: {data: [/mnt/a b]}")
    assert plan == RunPlan("digits-data=_mnt_a_b", {"data": "/mnt/a b"})


def test_if_one_name_would_be_too_long_all_runs_are_numbered() -> None:
    plans = sweep(f"sweep: {{data: [short, {'x' * 100}]}}")
    assert [plan.name for plan in plans] == ["digits-001", "digits-002"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sweep:", "sweep: is empty"),
        ("sweep: {}", "sweep: is empty; remove it, or write it like {lr: [1e-3, 1e-2]}"),
        ("sweep: [1]", "sweep: must be a group of lists"),
        ("sweep: {lr: []}", "sweep.lr: is an empty list"),
        ("sweep: {lr: 5}", "sweep.lr: must be a list; write lr: [5]"),
        ("sweep: {lr: }", "sweep.lr: has no value"),
        ("sweep: {lr: {a: 1}}", "sweep.lr: must be a list, not a group"),
        ("sweep: {lr: [[1]]}", "sweep.lr[1]: must be a number or a text"),
        ("sweep: {learning rate: [1]}", "sweep.learning rate: is not a valid parameter name"),
        ('sweep: {lr: ["a\\nb"]}', "contains a line break or control character"),
    ],
)
def test_an_invalid_sweep_is_a_mistake(text: str, sentence: str) -> None:
    (found,) = mistakes(text)
    assert found.startswith(f"params.yaml:1: {sentence}") or sentence in found


def test_a_value_given_twice_is_a_mistake_that_names_both_lines() -> None:
    (found,) = mistakes("sweep:\n  lr:\n    - 1e-3\n    - 1e-2\n    - 1e-3\n")
    assert found.startswith(
        "params.yaml:5: sweep.lr[3]: 1e-3 is given twice, first in line 3: two runs would have the same"
    )


def test_two_values_that_give_the_same_name_are_a_mistake_that_names_both_lines() -> None:
    (found,) = mistakes("sweep:\n  data:\n    - a b\n    - a/b\n")
    assert found.startswith(
        'params.yaml:4: sweep.data[2]: "a/b" and "a b" in line 3 would give two runs the same name'
    )


def test_two_runs_with_the_same_name_are_found_across_parameters() -> None:
    (found,) = mistakes("sweep: {a: [1-b=1, 1], b: [2, 1-b=2]}")
    assert "two runs would be called digits-a=1-b=1-b=2" in found


def test_a_value_given_twice_is_found_when_the_runs_are_numbered() -> None:
    (found,) = mistakes(f"sweep: {{data: [{'x' * 100}, {'x' * 100}]}}")
    assert "is given twice" in found


def test_a_grid_that_is_too_large_is_refused_before_it_is_made() -> None:
    values = ", ".join(str(number) for number in range(100))
    axes = ", ".join(f"p{axis}: [{values}]" for axis in range(30))
    (found,) = mistakes(f"sweep: {{{axes}}}")
    assert "runs; the limit is 100,000" in found


def test_runs_and_sweep_exclude_each_other_in_the_reader(tmp_path_factory: pytest.TempPathFactory) -> None:
    from outlast.spec import BadSpec, read

    directory = tmp_path_factory.mktemp("both")
    (directory / "params.yaml").write_text("command: sh -c {lr}\nsweep: {lr: [1]}\nruns: 2\n")
    with pytest.raises(
        BadSpec, match=r"^params.yaml:3: runs: cannot be combined with sweep \(line 2\); keep one"
    ):
        read(directory)
