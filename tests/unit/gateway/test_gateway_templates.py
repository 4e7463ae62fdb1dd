"""`template.yaml` with its params.yaml: their meaning, and all mistakes in both files at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.gateway.settings import Ceilings, InputRule, Parameter
from outlast.spec import BadSpec, read
from support.gateways import PARAMS, SETTINGS, TEMPLATE, GatewayFiles, write_gateway


@pytest.fixture
def files(tmp_path: Path) -> GatewayFiles:
    return write_gateway(tmp_path / "lab")


def mistakes(files: GatewayFiles, template: str = TEMPLATE, params: str = PARAMS) -> list[str]:
    files.write("templates/pages/template.yaml", template)
    files.write("templates/pages/params.yaml", params)
    with pytest.raises(BadSpec) as caught:
        files.templates()
    return str(caught.value).splitlines()


def test_every_key_is_read(files: GatewayFiles) -> None:
    text = TEMPLATE.replace("total: 2d", "total: 2d, outage: 1h")
    text = text.replace("[store.example.org]", "[store.example.org], directory: out")
    text += "users: [anna, otto]\n"
    text += "quota: {running: 2, waiting: 3, waiting_per_user: 4, per_day_per_user: 5}\n"
    (files.directory.template("pages") / "out").mkdir()
    files.write("templates/pages/template.yaml", text)
    found = files.template()
    assert (found.name, found.title, found.users) == ("pages", "Separates pages", ("anna", "otto"))
    assert found.directory == files.directory.template("pages")
    assert found.parameters == {
        "epochs": Parameter("integer", 1, 200, default=15),
        "rate": Parameter("number", 0, default=0.01),
        "mode": Parameter("choice", choices=("fast", "1e-3"), default="fast"),
        "augment": Parameter("yes-no", default=True),
        "note": Parameter("text", longest=20, default=""),
    }
    assert found.inputs == {
        "book": InputRule("book.zip", most=5 * 10**6, private_hosts=("127.0.0.1:8080",)),
        "extra": InputRule("more/extra.txt", required=False, hosts=("data.example.org",), token=False),
    }
    assert found.ceilings == Ceilings(4, 1, 8 * 10**9, 20 * 10**9, 7200.0, 2 * 86400.0, 3600.0)
    assert (found.quota.running, found.quota.waiting) == (2, 3)
    assert (found.quota.waiting_per_user, found.quota.per_day_per_user) == (4, 5)
    assert found.answer == {"model": "model.npz", "log": "log.txt?"}
    assert found.upload_hosts == ("store.example.org",)
    assert found.upload_directory == found.directory / "out"


@pytest.mark.parametrize(
    ("before", "after", "line", "mistake"),
    [
        ("title:", "titel:", 1, 'did you mean "title"?'),
        ("type: integer, ", "", 3, "type is missing"),
        ("type: integer", "type: int", 3, "must be integer"),
        ("at_least: 1,", "at_least: 300,", 3, "more than at_most"),
        ("default: 15", "default: 0", 3, "must be at least 1"),
        ("default: 15", "default: 1.5", 3, "must be a whole number"),
        ("default: 15", "default: yes", 3, "must be a whole number"),
        ("default: 15", "pattern: a", 3, "is not for the type integer"),
        ("choices: [fast, 1e-3]", "choices: []", 5, "must be a list"),
        ("choices: [fast, 1e-3]", "choices: [slow]", 5, "must be slow"),
        ("longest: 20", "pattern: '['", 7, "not a regular expression"),
        ("longest: 20", "lonest: 20", 7, 'did you mean "longest"?'),
        ("to: book.zip", "to: ../book.zip", 9, 'must not contain ".."'),
        ("to: book.zip", "to: /book.zip", 9, "below the data directory"),
        ("to: book.zip, ", "", 9, "to is missing"),
        ("most: 5MB", "most: 5", 9, "has no unit"),
        ("to: more/extra.txt", "to: book.zip/x", 10, "each other's way"),
        ("[data.example.org]", "['https://data.example.org/']", 10, "is a URL, not a host"),
        ("[data.example.org]", "['me:s3cret@data.example.org']", 10, "contains a user or password"),
        ("[data.example.org]", "['*.example.org']", 10, "listed by its name"),
        ("[data.example.org]", "[10.0.0.1]", 10, "list it under private_hosts"),
        ("memory: 8GB", "memory: 900MB", 11, "params.yaml begins with 1 GB"),
        ("total: 2d", "total: 1h", 11, "less than time"),
        ("model: model.npz", "model: /etc/passwd", 12, "must be relative"),
        ("[store.example.org]", "[store/]", 13, "is a URL, not a host"),
        ("hosts: [store.example.org]", "directory: nowhere", 13, "is not a directory"),
        ("epochs:", "epoch s:", 3, "not a valid parameter name"),
        ("  note:", "  unused: {type: integer}\n  note:", 7, "would have no effect"),
    ],
)
def test_a_mistake_is_reported_with_its_line(
    files: GatewayFiles, before: str, after: str, line: int, mistake: str
) -> None:
    assert before in TEMPLATE
    found = mistakes(files, TEMPLATE.replace(before, after, 1))
    start = f"templates/pages/template.yaml:{line}: "
    assert [one for one in found if one.startswith(start) and mistake in one], found
    assert "s3cret" not in "\n".join(found)


def test_mistakes_in_both_files_and_in_all_templates_are_reported_at_once(files: GatewayFiles) -> None:
    files.write("gateway.yaml", SETTINGS.replace("[pages]", "[pages, other]"))
    found = mistakes(files, TEMPLATE.replace("title", "titel"), PARAMS.replace("code", "cod"))
    assert [one.split(": ")[0] for one in found] == [
        "templates/pages/template.yaml:1",
        "templates/pages/params.yaml:3",
        "templates/other/template.yaml",
    ]


def test_an_input_that_no_host_could_have_is_a_mistake(files: GatewayFiles) -> None:
    files.write("gateway.yaml", SETTINGS[: SETTINGS.index("application:")])
    text = TEMPLATE.replace(', private_hosts: ["127.0.0.1:8080"]', "")
    assert "could be fetched from no host" in mistakes(files, text)[0]


@pytest.mark.parametrize("key", ["sweep: {lr: [1, 2]}", "runs: 2"])
def test_a_template_has_neither_sweep_nor_runs(files: GatewayFiles, key: str) -> None:
    found = mistakes(files, params=PARAMS + key + "\n")
    assert len(found) == 1 and "is not for templates" in found[0]
    assert found[0].startswith("templates/pages/params.yaml:6: ")


def test_a_placeholder_that_template_yaml_does_not_declare_is_a_mistake(files: GatewayFiles) -> None:
    found = mistakes(files, params=PARAMS.replace("{epochs}", "{epoch}"))
    assert "unknown parameter {epoch}: template.yaml has epochs" in "\n".join(found)
    assert 'did you mean "epochs"?' in "\n".join(found)


@pytest.mark.parametrize(
    "command",
    [
        "bash -c 'python3 train.py {note}'",
        "bash -c {note}",
        "python3 -c 'print(\"{note}\")'",
        "{note} train.py",
        "env 'A={note} b' python3 train.py",
    ],
)
def test_a_text_that_would_be_part_of_a_program_is_a_mistake(files: GatewayFiles, command: str) -> None:
    rest = " x {epochs} {rate} {mode} {augment}"
    params = PARAMS.replace(PARAMS.splitlines()[1], f"command: >-\n  {command}{rest}")
    assert "program" in "\n".join(mistakes(files, params=params))


def test_a_resume_line_may_use_the_parameters(files: GatewayFiles) -> None:
    files.write("templates/pages/params.yaml", PARAMS + "checkpoints: {resume: '--from {note}'}\n")
    assert files.parsed().spec.checkpoints.resume == "--from {note}"


def test_a_template_is_one_run_with_some_value_for_each_parameter(files: GatewayFiles) -> None:
    text = TEMPLATE.replace(", default: 15", "").replace(", default: fast", "")
    files.write("templates/pages/template.yaml", text)
    (plan,) = files.parsed().runs
    assert plan.params == {"epochs": "1", "rate": "0.01", "mode": "fast", "augment": "yes", "note": ""}


def test_a_template_is_started_by_hand_with_its_defaults(files: GatewayFiles) -> None:
    (plan,) = read(files.directory.template("pages")).runs
    assert plan.name == "pages"
    assert plan.params == {"epochs": "15", "rate": "0.01", "mode": "fast", "augment": "yes", "note": ""}


def test_a_parameter_without_a_default_cannot_be_started_by_hand(files: GatewayFiles) -> None:
    files.write("templates/pages/template.yaml", TEMPLATE.replace(", default: 15", ""))
    with pytest.raises(BadSpec, match=r"unknown parameter \{epochs\}"):
        read(files.directory.template("pages"))


def test_a_file_of_that_name_beside_an_ordinary_experiment_changes_nothing(files: GatewayFiles) -> None:
    directory = files.directory.template("pages")
    files.write("templates/pages/params.yaml", "command: python3 train.py {lr}\nsweep: {lr: [1, 2]}\n")
    assert [plan.params for plan in read(directory).runs] == [{"lr": "1"}, {"lr": "2"}]
    files.write("templates/pages/params.yaml", "command: python3 train.py\n")
    assert read(directory).runs[0].params == {}


def test_a_token_that_no_job_would_send_is_a_mistake(files: GatewayFiles) -> None:
    """A node sends tokens by https only, so each of these inputs would be refused with 401."""
    files.write("gateway.yaml", SETTINGS.replace("https://app.example.org", "http://127.0.0.1:8000"))
    with pytest.raises(BadSpec) as caught:
        files.templates()
    (mistake,) = caught.value.mistakes
    assert "plain http" in str(mistake) and "token: no" in str(mistake) and "book" in str(mistake)
    text = TEMPLATE.replace("{to: book.zip,", "{to: book.zip, token: no,")
    files.write("templates/pages/template.yaml", text)
    assert not files.template().inputs["book"].token


@pytest.mark.parametrize(
    ("uploads", "wrong"),
    [
        ("{hosts: [store.example.org, app.example.org], path: /uploads/results/}", ""),
        ("{hosts: [store.example.org], path: /uploads/results/}", "not one of the hosts"),
        ("{hosts: [app.example.org], path: uploads/results}", "is not a path"),
        ("{hosts: [app.example.org], path: /}", "is not a path"),
        ("{hosts: [app.example.org], path: /uploads/../}", "is not a path"),
        ("{hosts: [app.example.org], path: '/uploads?x'}", "is not a path"),
    ],
)
def test_the_path_for_results_is_one_on_the_application(
    files: GatewayFiles, uploads: str, wrong: str
) -> None:
    text = TEMPLATE.replace("uploads: {hosts: [store.example.org]}", "uploads: " + uploads)
    if wrong:
        assert wrong in "\n".join(mistakes(files, text))
    else:
        files.write("templates/pages/template.yaml", text)
        assert files.template().upload_path == "/uploads/results/"
