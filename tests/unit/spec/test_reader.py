"""`spec.read`: the meaning of a params.yaml, and all mistakes in it at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from outlast.domain.model import Checkpoints, Limits, Resources, RunPlan
from outlast.errors import BadInput
from outlast.local_cluster.hosts import Host
from outlast.node.output_rule import OutputRule
from outlast.spec import BadSpec, Parsed, read
from outlast.spec.schema import ParamsKeys

FULL = """\
name: digits
command: python3 train.py --epochs 30 --lr {lr}
code: [train.py, check_model.py]
cluster: local
resources: {cpus: 2, gpus: 1, memory: 2GB, disk: 5GB, time: 24:00:00}
sweep: {lr: [1e-3, 1e-2]}
parallel: 2
outputs:
  - model.npz
  - {path: metrics.json, key: accuracy, at_least: 0.9}
  - {path: ./model.npz, check: python3 check_model.py}
limits: {attempts: 10, without_progress: 4, total: 7d}
checkpoints: {keep: 2, grace: 60s, signal: USR1, every: auto, shortest: 1min, longest: 2h}
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment with a training script and a check, a machine with a GPU, and no user configuration."""
    monkeypatch.setattr("outlast.spec.cluster_library.this_machine", lambda: {"here": Host(4, 1)})
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    experiment = tmp_path / "2026-11-15_A_digits"
    experiment.mkdir()
    (experiment / "train.py").write_text("")
    (experiment / "check_model.py").write_text("")
    return experiment


def parsed(directory: Path, text: str) -> Parsed:
    (directory / "params.yaml").write_text(text, encoding="utf-8")
    return read(directory)


def mistakes(directory: Path, text: str) -> list[str]:
    with pytest.raises(BadSpec) as caught:
        parsed(directory, text)
    assert str(caught.value).splitlines() == [str(mistake) for mistake in caught.value.mistakes]
    return str(caught.value).splitlines()


def warnings(directory: Path, text: str) -> list[str]:
    return [str(warning) for warning in parsed(directory, text).warnings]


def test_the_keys_of_snapshots_are_read(directory: Path) -> None:
    text = FULL.replace("keep: 2,", "keep: 2, snapshots: 5, snapshot_size: 3GB, resume: '--from last {lr}',")
    found = parsed(directory, text).spec.checkpoints
    assert (found.snapshots, found.snapshot_size, found.resume) == (5, 3 * 10**9, "--from last {lr}")
    found = parsed(directory, FULL).spec.checkpoints
    assert (found.snapshots, found.snapshot_size, found.resume) == (2, 20 * 10**9, "")


def test_every_key_is_read(directory: Path) -> None:
    found = parsed(directory, FULL)
    spec = found.spec
    assert (spec.name, spec.cluster, spec.parallel) == ("digits", "local", 2)
    assert spec.command == "python3 train.py --epochs 30 --lr {lr}"
    assert spec.code == ("train.py", "check_model.py")
    assert spec.resources == Resources(2, 1, 2 * 10**9, 5 * 10**9, 86400.0)
    assert spec.limits == Limits(10, 4, 7 * 86400.0)
    assert spec.checkpoints == Checkpoints(2, 60.0, "USR1", None, 60.0, 7200.0)
    assert spec.outputs == (
        OutputRule("model.npz"),
        OutputRule("metrics.json", "accuracy", 0.9),
        OutputRule("model.npz", check=("python3", "check_model.py")),
    )
    assert found.runs == (
        RunPlan("digits-lr=1e-3", {"lr": "1e-3"}),
        RunPlan("digits-lr=1e-2", {"lr": "1e-2"}),
    )
    assert (found.cluster.name, found.cluster.scheduler) == ("local", "local")
    assert found.warnings == found.notes == ()


def test_a_command_alone_is_enough(directory: Path) -> None:
    found = parsed(directory, "command: python3 train.py\n")
    assert found.spec.name == "digits"
    assert found.spec.code == ("train.py",)
    assert found.spec.parallel is None
    assert (found.spec.resources, found.spec.limits, found.spec.checkpoints) == (
        Resources(),
        Limits(),
        Checkpoints(),
    )
    assert found.runs == (RunPlan("digits"),)


def test_several_mistakes_are_reported_at_once_in_the_order_of_their_lines(directory: Path) -> None:
    text = """\
nam: digits
command: python3 trian.py --lr {lrr}
code: [train.py, missing.py]
cluster: slrm
resources:
  cpus: "2"
  time: soonish
  gpu: 1
sweep: {lr: [1, 2]}
outputs: [../x]
checkpoints: {keep: 1}
"""
    assert mistakes(directory, text) == [
        'params.yaml:1: nam: unknown key; did you mean "name"? (known: name, command, code, cluster, '
        "resources, runs, sweep, parallel, data, outputs, other_outputs, limits, checkpoints, env)",
        f'params.yaml:2: command: trian.py is not in {directory}; did you mean "train.py"?',
        'params.yaml:2: command: unknown parameter {lrr}: sweep has lr; did you mean "lr"?',
        'params.yaml:3: code[2]: "missing.py" does not exist',
        'params.yaml:4: cluster: "slrm" is not a cluster; did you mean "slurm"? '
        "(known: local, slurm, sge, htcondor)",
        'params.yaml:6: resources.cpus: must be a whole number, not the text "2"; remove the quotes',
        'params.yaml:7: resources.time: "soonish" is not a duration; '
        "write it like 90s, 30min, 24h, 2d, 24:00:00 or 2-12:00:00",
        'params.yaml:8: resources.gpu: unknown key; did you mean "gpus"? '
        "(known: cpus, gpus, memory, disk, time)",
        'params.yaml:10: outputs[1].path: "../x" must not contain ".."; outputs are in $OUTLAST_OUTPUT_DIR',
        "params.yaml:11: checkpoints.keep: 1 is too small; it must be at least 2",
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("runs: true", "runs: must be a whole number, not true (true or false)"),
        ("runs: 1.5", "runs: must be a whole number, not 1.5"),
        ("runs: 0", "runs: 0 is too small; it must be at least 1"),
        ("runs: 100001", "runs: 100001 is too large; it can be at most 100,000"),
        ("runs: [1]", "runs: must be a whole number, not a list"),
        ("runs:", "runs: has no value; write one, or remove the line"),
        ("name: 5", 'name: must be text, not 5; write "5" with quotes'),
        ("name: .hidden", 'name: ".hidden" is not a valid name; use letters'),
        ("name: a b", 'name: "a b" is not a valid name'),
        ("name: ''", "name: is empty"),
        (f"name: {'x' * 101}", "name: is 101 characters long; the limit is 100"),
        ("parallel: 0", "parallel: 0 is too small"),
        (
            "resources: 5",
            "resources: must be a group of keys, not 5; known: cpus, gpus, memory, disk, time",
        ),
        ("resources: {gpus: -1}", "resources.gpus: -1 is too small; it must be at least 0"),
        ("resources: {memory: 2}", "resources.memory: 2 has no unit; write 2MB or 2GB"),
        ("resources: {memory: [2]}", "resources.memory: must be a size; write it like"),
        ("resources: {time: 90}", "resources.time: 90 has no unit; write 90h, 90min or 90s"),
        ("resources: {time: 0}", "resources.time: must be more than zero"),
        ("resources: {time: .nan}", 'resources.time: "nan" is not a duration'),
        ("resources: {time: -5s}", "a duration cannot be negative"),
        ("resources: {time: true}", "resources.time: must be a duration"),
        ("limits: {total: [1]}", "limits.total: must be a duration"),
        ("checkpoints: {snapshots: -1}", "checkpoints.snapshots: -1 is too small; it must be at least 0"),
        ("checkpoints: {snapshots: 101}", "checkpoints.snapshots: 101 is too "),
        ("checkpoints: {snapshot_size: much}", 'checkpoints.snapshot_size: "much" is not a size'),
        ('checkpoints: {resume: "--from=\'a"}', "checkpoints.resume: a quote is opened and not closed"),
        ("checkpoints: {resume: '--lr={lr}'}", "checkpoints.resume: "),
        ("checkpoints: {signal: KILL}", 'must be TERM, USR1 or USR2, not the text "KILL"'),
        (
            "checkpoints: {every: automatic}",
            'checkpoints.every: "automatic" is not a duration; write it like',
        ),
        ("checkpoints: {every: 0s}", "checkpoints.every: must be more than zero; or auto"),
        ("checkpoints: {every: 5}", "checkpoints.every: 5 has no unit; write 5h, 5min or 5s; or auto"),
        ("checkpoints: {every: }", "checkpoints.every: has no value"),
        (
            "checkpoints: {shortest: 2h, longest: 1h}",
            "checkpoints.shortest: 2 h is more than longest, 1 h",
        ),
        ("checkpoints: {signal: usr1}", 'did you mean "USR1"?'),
        ("code: train.py", 'code: must be a list, not the text "train.py"; write [train.py]'),
        ("code: [5]", 'code[1]: must be text, not 5; write "5" with quotes'),
        ("outputs: [5]", "outputs[1]: must be a group of keys, not 5; known: path, key"),
        ("outputs: [{key: a}]", "outputs[1]: path is missing"),
        ("outputs: [{pth: a}]", 'outputs[1].pth: unknown key; did you mean "path"?'),
        ("outputs: [/etc/passwd]", "must be relative"),
        ("outputs: [.]", "must name something inside"),
        ("outputs: [{path: a.json, at_least: 1}]", "outputs[1].at_least: needs a key to compare"),
        (
            "outputs: [{path: a.json, key: k, at_least: '1'}]",
            'must be a number, not the text "1"; remove the quotes',
        ),
        ("outputs: [{path: a.json, key: k, at_most: .inf}]", "must be a finite number"),
        ("outputs: [{path: a.json, key: k, at_least: 2, at_most: 1}]", "2 is more than at_most, 1"),
        ("outputs: [{path: a, check: python3 x.py | cat}]", 'outputs[1].check: "|" is shell syntax'),
        ("outputs: [{path: a, check: python3 x.py}]", "outputs[1].check: x.py is not in"),
        ("outputs: [{path: a, check: 'x \"y'}]", "outputs[1].check: a quote is opened and not closed"),
        ("time: 4h", "time: unknown key; it belongs under resources:"),
        ("limits: {runs: 3}", "limits.runs: unknown key"),
        ("command: python3 train.py", "command: given twice, first in line 1"),
    ],
)
def test_a_mistake_is_one_plain_sentence_with_its_line(directory: Path, line: str, sentence: str) -> None:
    (found,) = mistakes(directory, f"command: python3 train.py\n# a comment\n{line}\n")
    assert found.startswith("params.yaml:3: ")
    assert sentence in found
    assert "pydantic" not in found
    assert "http" not in found


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("name: x", "command: is missing; write the command that trains"),
        ("command:", "command: has no value"),
        ("command: ''", "command: is empty"),
        ("command: true", 'command: must be text, not true (true or false); write "true" with quotes'),
        ("command: {lr}", "command: must be text, not a group {...}; put quotes around it"),
        ("command: python3 train.py > log", "put it into a script, list it under code, or write bash -c"),
        ("command: python3 train.py --lr {lr}", "unknown parameter {lr}: there is no sweep"),
        (f"command: {'x' * 30_001}", "command: is longer than 30,000 characters; put it into a script"),
        ('command: "a\\0b"', "command: contains a control character"),
        ('command: "a\\ud800b"', "command: "),
    ],
)
def test_an_invalid_command_is_a_mistake(directory: Path, line: str, sentence: str) -> None:
    (found,) = mistakes(directory, line)
    assert sentence in found


def test_one_mistake_in_a_group_does_not_hide_another_in_its_neighbour(directory: Path) -> None:
    text = "command: python3 train.py\noutputs:\n  - {path: a, kye: x}\n  - {path: ../b}\n  - {path: 5}\n"
    found = mistakes(directory, text)
    assert [line.split(": ")[:2] for line in found] == [
        ["params.yaml:3", "outputs[1].kye"],
        ["params.yaml:4", "outputs[2].path"],
        ["params.yaml:5", "outputs[3].path"],
    ]


@pytest.mark.parametrize(
    ("key", "entries", "sentences"),
    [
        ("outputs", ["../x", "/abs", '""', '"."'], ["..", "be relative", "is empty", "name something"]),
        ("outputs", ["{path: ../x}", "{path: /abs}", "3"], ["..", "be relative", "a group of keys, not 3"]),
        ("outputs", ["[a]", "~", "../x", "{path: ''}"], ["not a list", "no value", "..", "is empty"]),
        ("code", ["5", "../x", '""', "missing.py"], ["be text, not 5", "..", "is empty", "does not exist"]),
        ("code", ["../x", "~", "{train.py: 1}", "logs"], ["..", "no value", "be text", "its own files"]),
    ],
)
def test_a_wrong_entry_of_a_list_does_not_hide_the_others(
    directory: Path, key: str, entries: list[str], sentences: list[str]
) -> None:
    listed = "".join(f"  - {entry}\n" for entry in entries)
    found = mistakes(directory, f"command: python3 train.py\n{key}:\n{listed}")
    assert [line.partition("]")[0] for line in found] == [
        f"params.yaml:{index + 3}: {key}[{index + 1}" for index in range(len(entries))
    ]
    for line, sentence in zip(found, sentences, strict=True):
        assert sentence in line


def test_a_wrong_entry_of_code_is_not_also_called_missing_from_it(directory: Path) -> None:
    (found,) = mistakes(directory, "command: python3 train.py\ncode:\n  - train.py: 1\n")
    assert found.startswith("params.yaml:3: code[1]: must be text")


def test_a_time_like_30_00_is_minutes_as_in_slurm_and_is_warned_about(directory: Path) -> None:
    text = "command: python3 train.py\nresources: {time: 30:00}\n"
    assert parsed(directory, text).spec.resources.time == 1800
    (warning,) = warnings(directory, text)
    assert warning.startswith(
        "params.yaml:2: resources.time: 30:00 is read as minutes and seconds, as Slurm does"
    )


def test_a_grace_that_is_cut_is_warned_about_only_if_it_was_written(directory: Path) -> None:
    short = "command: python3 train.py\nresources: {time: 4s}\n"
    assert warnings(directory, short) == []
    (warning,) = warnings(directory, f"{short}checkpoints: {{grace: 30s}}\n")
    assert warning.endswith(
        "checkpoints.grace: is more than a quarter of the attempt's time and is cut to 1 s"
    )


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("every: 90s", (90.0, 10.0, 3600.0)),
        ("every: auto", (None, 10.0, 3600.0)),
        ("longest: 5s", (None, 5.0, 5.0)),
        ("shortest: 2h", (None, 7200.0, 7200.0)),
        ("shortest: 20s, longest: 40s", (None, 20.0, 40.0)),
    ],
)
def test_a_default_bound_between_saves_is_moved_to_fit_the_one_that_was_written(
    directory: Path, keys: str, expected: tuple[float | None, float, float]
) -> None:
    text = "command: python3 train.py\nresources: {time: 24h}\ncheckpoints: {%s}\n" % keys
    found = parsed(directory, text)
    rules = found.spec.checkpoints
    assert ((rules.every, rules.shortest, rules.longest), found.warnings) == (expected, ())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "command: python3 train.py\ncheckpoints: {every: 5min, longest: 20min}",
            "checkpoints.longest: has no effect with every: 5min; write every: auto, or remove this",
        ),
        (
            "command: python3 train.py\nresources: {time: 1h}\ncheckpoints: {every: 90min}",
            "checkpoints.every: is not shorter than the attempt's time, 1 h; the only save will be",
        ),
        ("command: python3 train.py\ncheckpoints: {longest: 30:00}", "30:00 is read as minutes and seconds"),
        ("command: python3 train.py\ncluster: slurm\nresources: {time: 30s}", "very short for Slurm"),
        ("command: python3 train.py\nsweep: {lr: [1, 2]}", "the command does not use {lr}"),
        ("command: python3 train.py {lr}\nsweep: {lr: [1e-3, 0.001]}", "0.001 is the same number as 1e-3"),
        ("command: python3 train.py\noutputs: [{path: m.txt, key: k}]", "m.txt will be read as JSON"),
        ("command: python3 train.py $HOME/data", "$HOME is passed literally"),
        ("command: no-such-program-1", "no-such-program-1 is not found on this machine's PATH"),
        (
            "command: python3 train.py\noutputs: ['*.npz']",
            'outputs[1].path: "*.npz" is taken literally; patterns are not expanded',
        ),
        ("command: python3 train.py\noutputs: [{path: model-?.npz}]", '"model-?.npz" is taken literally'),
        ("command: python3 train.py\noutputs: ['model[0-9].npz']", '"model[0-9].npz" is taken literally'),
        (
            "command: python3 train.py\nresources: {time: 2h}\nlimits: {total: 1h}",
            "params.yaml:3: limits.total: is shorter than resources.time, 2 h",
        ),
        (
            "command: python3 train.py\nresources: {time: 15d}",
            "params.yaml:2: resources.time: is longer than limits.total, 14 d",
        ),
        ("command: python3 train.py\nresources: {time: 0.5s}", "resources.time: is less than a second"),
    ],
)
def test_a_setting_that_is_allowed_but_probably_not_meant_is_a_warning(
    directory: Path, text: str, sentence: str
) -> None:
    (warning,) = warnings(directory, text)
    assert sentence in warning


@pytest.mark.parametrize(
    "line",
    [
        "outputs: [model.npz, 'a{b}.json']",
        "resources: {time: 1s}",
        "resources: {time: 2h}\nlimits: {total: 2h}",
    ],
)
def test_a_setting_at_the_edge_of_a_warning_is_not_warned_about(directory: Path, line: str) -> None:
    assert warnings(directory, f"command: python3 train.py\n{line}\n") == []


def test_a_directory_without_params_yaml_gets_a_hint_how_to_create_one(directory: Path) -> None:
    with pytest.raises(
        BadInput, match=r"^params.yaml: not found in .*`outlast init .*` writes one that runs$"
    ):
        read(directory)


@pytest.mark.parametrize("name", ["nowhere", "nowhere\0", "train.py"])
def test_a_path_that_is_not_a_directory_is_named(directory: Path, name: str) -> None:
    with pytest.raises(BadInput, match=r"does not exist|is not a directory"):
        read(directory / name)


_PIECES = (
    *ParamsKeys.model_fields,
    *("cpus", "time", "lr", "path", "check", ": ", "\n", "\n  ", "- ", "[", "]", "{", "}", ", ", "1", "1e-3"),
    *("true", "~", "'", '"', "&a ", "*a", "#", "|", "4s", "2GB", "..", "{lr}", "slurm", "\t", "!x "),
)
_WORDS = st.sampled_from(_PIECES)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(), st.lists(_WORDS, max_size=40).map("".join), st.binary()))
@example("sweep: {? [a] : b}")
@example("command: a\nsweep: {lr: *x}")
@example("command: " + "x" * 300)
@example("command: python3 " + "x/" * 3000)
@example('code: "\\ud800"')
@example('resources: {time: "1\\nh"}')
def test_any_content_is_an_experiment_or_bad_input(directory: Path, content: str | bytes) -> None:
    raw = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    (directory / "params.yaml").write_bytes(raw)
    try:
        assert isinstance(read(directory), Parsed)
    except BadInput as error:
        assert str(error)
        str(error).encode("utf-8")


_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from([*ParamsKeys.model_fields]), _VALUES, max_size=5))
def test_any_value_under_a_known_key_is_an_experiment_or_bad_input(
    directory: Path, content: dict[str, object]
) -> None:
    import json

    (directory / "params.yaml").write_text(json.dumps({"command": "python3 train.py", **content}))
    try:
        assert isinstance(read(directory), Parsed)
    except BadInput as error:
        assert str(error)
        str(error).encode("utf-8")
