"""YAML files: exact lines, values as written, and limits that hold for any content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.spec.document import plain, resolve, show_path
from outlast.spec.mistakes import BadSpec, Mistake
from outlast.spec.yamlfile import load, parse


def mistakes_of(text: str) -> tuple[Mistake, ...]:
    with pytest.raises(BadSpec) as caught:
        parse(text, "params.yaml")
    return caught.value.mistakes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.", 1.0),
        (".5", 0.5),
        ("-7", -7),
        ("010", 10),
        ("24:00:00", "24:00:00"),
        ("2-12:00:00", "2-12:00:00"),
        ("yes", "yes"),
        ("true", True),
        ("~", None),
        ("-.inf", float("-inf")),
        ("1_000", "1_000"),
        ("9" * 5000, float("inf")),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    assert resolve(text) == value
    assert type(resolve(text)) is type(value)


def test_quoted_scalars_are_text() -> None:
    document = parse("a: '1'\nb: \"true\"\nc: |\n  5\n", "x")
    assert plain(document.root) == {"a": "1", "b": "true", "c": "5\n"}


def test_values_are_kept_as_they_were_written_with_their_lines() -> None:
    document = parse("# comment\nsweep:\n  lr:\n    - 1e-3\n    - 0.0010\nempty:\n", "x")
    assert document.text(("sweep", "lr", 1)) == "0.0010"
    assert document.line(("sweep", "lr", 1)) == 5
    assert document.line(("sweep", "lr"), of_key=True) == 3
    assert document.line(("empty",)) == 6
    assert document.line(("sweep", "nothing")) == 2
    assert document.line(("nothing",)) is None


def test_a_path_is_shown_with_indices_from_1() -> None:
    assert show_path(("outputs", 1, "key")) == "outputs[2].key"


def test_a_key_given_twice_is_found_with_both_lines() -> None:
    (mistake,) = parse("a: 1\nb: 2\na: 3\n", "params.yaml").mistakes
    assert str(mistake) == "params.yaml:3: a: given twice, first in line 1; remove one of them"


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("a:\n\tb: 1", 2, 1, "YAML does not allow a tab as indentation; use spaces"),
        ("a: python x: y", 1, 12, 'put quotes around text that contains ": "'),
        ("a: 'x\n", 2, 1, "the file ends inside quotes"),
        ("a: [1, 2\nb: 3\n", 2, 2, "a list [...] is not closed"),
        ("a: {b: 1\n", 2, 1, "a group {...} is not closed"),
        ("a: @x", 1, 4, "put quotes around the text"),
        ("a: 1\n  b: 2\n", 2, 4, '": "'),
        ("a: 1\n---\nb: 2\n", 2, 1, "a second document"),
        ("a: *x\n", 1, 4, "there is no &x above it"),
        ("a: &x [*x]\n", 1, 8, "there is no &x above it"),
        ("a: !!python/object:os.system x", 1, 4, "tags such as"),
        ("{a: 1}: 2", 1, 1, "a key must be text"),
        ("[" * 100, 1, 21, "more than 20 levels"),
    ],
)
def test_what_is_not_yaml_is_reported_with_line_and_column(
    text: str, line: int, column: int, words: str
) -> None:
    (mistake,) = mistakes_of(text)
    assert words in str(mistake)
    assert (mistake.line, mistake.column) == (line, column)


def test_a_character_that_yaml_forbids_is_reported_with_its_line() -> None:
    (mistake,) = mistakes_of("a: 1\nb: \x01\n")
    assert (mistake.line, mistake.text) == (2, "a character that YAML does not allow")


def test_an_unexpected_exception_of_the_yaml_library_is_a_mistake_too() -> None:
    (mistake,) = mistakes_of('a: "\\U00110000"')
    assert mistake.text == "not valid YAML"


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "~"])
def test_an_empty_file_gets_a_hint(text: str) -> None:
    with pytest.raises(BadSpec, match=r"^clusters\.yaml: is empty; remove it$"):
        parse(text, "clusters.yaml", "remove it")


@pytest.mark.parametrize("text", ["- a\n", "just words"])
def test_a_file_without_keys_is_a_mistake(text: str) -> None:
    assert "key: value" in mistakes_of(text)[0].text


def test_aliases_are_followed() -> None:
    document = parse("a: &x [1, 2]\nb: *x\n", "x")
    assert plain(document.root) == {"a": [1, 2], "b": [1, 2]}


def test_aliases_that_expand_without_end_are_refused() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (mistake,) = mistakes_of("\n".join(lines))
    assert "more than 110,000 values" in mistake.text


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("a: " + "x" * (1 << 20))
    with pytest.raises(BadSpec, match="larger than 1 MiB"):
        load(path, "params.yaml")


def test_a_file_that_is_not_utf_8_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(BadSpec, match=r"^params.yaml:2: byte 0xe9 is not UTF-8; save the file as UTF-8$"):
        load(path, "params.yaml")


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: x\r\n")
    assert plain(load(path, "x").root) == {"a": 1, "b": "x"}


def test_a_directory_or_a_pipe_in_place_of_the_file_is_refused_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("directory", "pipe"):
        with pytest.raises(BadSpec, match="is not a file"):
            load(tmp_path / name, "params.yaml")


def test_a_file_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("a: 1")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    # The tests may run as root, who may read everything.
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BadSpec, match=r"params.yaml cannot be read: Permission denied"):
        load(path, "params.yaml")
