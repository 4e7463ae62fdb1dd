"""From a request to a run: exactly what the template allows, or a refusal with everything that is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.domain.model import RunPlan, Spec
from outlast.gateway.planning.input_items import input_item
from outlast.gateway.planning.run_plan import plan_run
from outlast.gateway.requests import (
    FailureCode,
    InputReference,
    RequestFailure,
    RequestRefused,
    TrainingRequest,
)
from outlast.gateway.settings import ApplicationSettings, GatewaySettings, InputRule, Template
from outlast.node.staging.item import DataItem
from outlast.node.staging.plan import DataPlan
from outlast.node.staging.sources.tokens import Tokens
from outlast.schedulers.profile import Profile
from outlast.spec import Parsed
from outlast.spec.command import arguments
from support.gateways import PARAMS, TEMPLATE, GatewayFiles, write_gateway

NOW = 1_800_000_000.0
BOOK = InputReference("/uploads/ab/original_file", "ab" * 32, 1000)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> GatewayFiles:
    return write_gateway(tmp_path_factory.mktemp("gateway"))


def request_with(**changes: Any) -> TrainingRequest:
    return replace(TrainingRequest("pages", {}, {"book": BOOK}), **changes)


def planned(
    files: GatewayFiles,
    request: TrainingRequest,
    user: str = "anna",
    token_file: Path | None = None,
    **template: Any,
) -> tuple[Spec, RunPlan]:
    found = replace(files.template(), **template)
    return plan_run(
        found,
        request,
        files.settings(),
        files.parsed(),
        user=user,
        number=123,
        now=NOW,
        token_file=token_file,
    )


def refused(files: GatewayFiles, request: TrainingRequest, **options: Any) -> RequestFailure:
    with pytest.raises(RequestRefused) as caught:
        planned(files, request, **options)
    failure = caught.value.failure
    assert failure.message.endswith(".") and failure.advice
    return failure


def refused_input(files: GatewayFiles, url: str, **reference: Any) -> RequestFailure:
    return refused(files, request_with(inputs={"book": InputReference(url, **reference)}))


def test_a_request_becomes_a_run_of_the_template(files: GatewayFiles) -> None:
    values = {"epochs": 3, "rate": 1, "mode": "1e-3", "augment": False, "note": "a b"}
    spec, plan = planned(files, request_with(parameters=values))
    assert plan == RunPlan(
        "pages-000123", {"epochs": "3", "rate": "1", "mode": "1e-3", "augment": "no", "note": "a b"}
    )
    assert arguments(spec.command, plan.params)[-1] == "--note=a b"
    assert spec.data == (
        DataItem(
            ("https://app.example.org/uploads/ab/original_file",),
            {"sha256": "ab" * 32},
            1000,
            method="http",
            file_name="book.zip",
            hosts=("app.example.org",),
            private_hosts=("127.0.0.1:8080",),
            most=5 * 10**6,
            token_scheme="Token",
        ),
    )


def test_defaults_are_filled_in(files: GatewayFiles) -> None:
    _, plan = planned(files, request_with())
    assert plan.params == {"epochs": "15", "rate": "0.01", "mode": "fast", "augment": "yes", "note": ""}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("epochs", value) for value in (True, 6.0, "6", -1, 0, 201, 2**63, "٦", None, [6], {}, "")),
        *(("rate", value) for value in (True, "1", float("nan"), float("inf"), -0.1, 10**400, None)),
        *(("mode", value) for value in ("slow", 1e-3, ["fast"], "", "fast ")),
        *(("augment", value) for value in ("yes", 1, 0, "true")),
        *(("note", value) for value in (5, "x" * 21, "a\nb", "\x1b[2J", "\ud800", "\0", "--wrap=id", "-x")),
    ],
)
def test_a_value_of_another_type_or_out_of_bounds_is_refused(
    files: GatewayFiles, name: str, value: object
) -> None:
    given = {"epochs": 3, "rate": 1, "mode": "fast", "augment": True, "note": "", name: value}
    if value is None:
        del given[name]  # the parser refuses null; here it means that the value is missing
        changed = replace(files.template().parameters[name], default=None)
        parameters = {**files.template().parameters, name: changed}
        failure = refused(files, request_with(parameters=given), parameters=parameters)
    else:
        failure = refused(files, request_with(parameters=given))
    assert failure.code is FailureCode.INVALID_REQUEST
    assert len(failure.mistakes) == 1 and failure.mistakes[0].startswith(f"parameters.{name}: ")
    assert failure.message.isprintable()


def test_all_mistakes_are_reported_at_once(files: GatewayFiles) -> None:
    failure = refused(
        files,
        request_with(
            parameters={"epochs": "3", "command": "rm", "epoch\x1b": 1},
            inputs={"bok": BOOK, "extra": InputReference("https://evil.example.org/x")},
            resources={"cpus": 1.0, "memory": 10**12, "nodes": 2},
            uploads={"model": "https://evil.example.org/put?X-Amz-Signature=s3cret"},
        ),
    )
    assert failure.code is FailureCode.INVALID_REQUEST
    paths = [text.partition(": ")[0] for text in failure.mistakes]
    assert sorted(paths) == sorted(
        [
            *("parameters.command", "parameters.epoch\N{REPLACEMENT CHARACTER}", "parameters.epochs"),
            *("inputs.bok", "inputs.book", "inputs.extra"),
            *("resources.cpus", "resources.memory", "resources.nodes", "uploads.model"),
        ]
    )
    assert "s3cret" not in str(failure)
    assert 'did you mean "book"?' in "\n".join(failure.mistakes)


def test_what_is_over_several_ceilings_is_one_failure(files: GatewayFiles) -> None:
    failure = refused(files, request_with(resources={"cpus": 5, "memory": 10**12, "time": 7201.0}))
    assert failure.code is FailureCode.OVER_CEILING and not failure.retryable
    assert [text.partition(":")[0] for text in failure.mistakes] == [
        "resources.cpus",
        "resources.memory",
        "resources.time",
    ]


@pytest.mark.parametrize("resources", [{"cpus": True}, {"cpus": 0}, {"memory": -1}, {"time": float("nan")}])
def test_resources_that_are_no_amounts_are_refused(files: GatewayFiles, resources: Mapping[str, Any]) -> None:
    assert refused(files, request_with(resources=resources)).code is FailureCode.INVALID_REQUEST


def test_a_run_begins_with_what_the_template_says_and_may_get_what_was_requested(
    files: GatewayFiles,
) -> None:
    spec, _ = planned(files, request_with(resources={"memory": 6 * 10**9, "time": 3600.0}))
    assert (spec.resources.memory, spec.resources.time, spec.resources.cpus) == (10**9, 1800.0, 2)
    assert (spec.limits.memory, spec.limits.disk, spec.limits.time) == (6 * 10**9, 20 * 10**9, 3600.0)


def test_a_request_for_less_than_the_template_begins_with_gets_less(files: GatewayFiles) -> None:
    given = {"cpus": 1, "gpus": 0, "memory": 5 * 10**8, "disk": 10**9, "time": 60}
    spec, _ = planned(files, request_with(resources=given))
    assert dataclasses.asdict(spec.resources) == given
    assert (spec.limits.memory, spec.limits.disk, spec.limits.time) == (5 * 10**8, 10**9, 60)


def test_the_deadline_limits_the_run(files: GatewayFiles) -> None:
    assert planned(files, request_with())[0].limits.total == 2 * 86400.0
    assert planned(files, request_with(deadline=NOW + 600))[0].limits.total == 600
    assert planned(files, request_with(deadline=NOW + 9e9))[0].limits.total == 2 * 86400.0
    assert refused(files, request_with(deadline=NOW)).code is FailureCode.EXPIRED


def test_the_limits_of_the_template_hold_where_a_request_has_none(files: GatewayFiles) -> None:
    spec, _ = planned(files, request_with())
    assert (spec.limits.memory, spec.limits.outage, spec.parallel) == (8 * 10**9, 6 * 3600.0, 20)


def test_a_user_who_is_not_listed_may_not_use_the_template(files: GatewayFiles) -> None:
    assert refused(files, request_with(), users=("otto",)).code is FailureCode.FORBIDDEN
    assert planned(files, request_with(), users=("otto", "anna"))[1].name == "pages-000123"


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1:6379/",
        "https://127.0.0.1/x",
        "https://[::1]/x",
        "https://[::ffff:127.0.0.1]/x",
        "https://2130706433/x",
        "https://10.0.0.1/x",
        "https://localhost/x",
        "file:///etc/passwd",
        "/etc/../../passwd",
        "//other/x",
        "///x",
        "\\\\other\\x",
        "/uploads/../admin",
        "/uploads/%2e%2e/admin",
        "/uploads/%252e%252E/admin",
        "/uploads/..%2fadmin",
        "/uploads/..;a/admin",
        "/uploads/./admin",
        "/uploads/a\r\nHost: x",
        "/uploads/a b",
        "/uploads/a%0d%0ab",
        "/uploads/a#b",
        "/uploads/a?token=s3cret",
        "https://user@app.example.org/x",
        "https://user:s3cret@app.example.org/x",
        "https://app.example.org@evil.example.org/x",
        "https://app.example.org.evil.example.org/x",
        "https://app.example.org:8443/x",
        "https://app.example.org./x",
        "https://APP.example.org\\@evil.example.org/x",
        "http://app.example.org/x",
        "https://evil.example.org/x",
        "https://data.example.org/x",
        "https:app.example.org/x",
        "https:///x",
        "https://app.example.org",
        "https://app.example.org:99999/x",
        "ftp://app.example.org/x",
        "osdf:///x",
        "s3://bucket/x",
        "uploads/x",
        "~/x",
        "",
        "/" + "x" * 5000,
    ],
)
def test_a_file_that_must_not_be_fetched_is_refused(files: GatewayFiles, url: str) -> None:
    failure = refused_input(files, url)
    assert failure.code is FailureCode.INPUT_REFUSED and not failure.retryable
    assert "s3cret" not in str(failure) and failure.message.isprintable()


@pytest.mark.parametrize(
    ("url", "full"),
    [
        ("/a/original_file", "https://app.example.org/a/original_file"),
        ("/a/with%20space.png?page=1", "https://app.example.org/a/with%20space.png?page=1"),
        ("https://app.example.org/a", "https://app.example.org/a"),
        ("https://APP.example.org:443/a", "https://app.example.org/a"),
        ("http://127.0.0.1:8080/a", "http://127.0.0.1:8080/a"),
    ],
)
def test_a_file_of_a_listed_host_is_fetched(files: GatewayFiles, url: str, full: str) -> None:
    spec, _ = planned(files, request_with(inputs={"book": InputReference(url)}))
    assert spec.data[0].urls == (full,)


def test_only_the_application_gets_its_token_and_certificates() -> None:
    rule = InputRule("a", hosts=("data.example.org",))
    application = ApplicationSettings("https://app.example.org", ca_file=Path("/ca.pem"))
    own = input_item(rule, InputReference("/x"), application)
    other = input_item(rule, InputReference("https://data.example.org/x"), application)
    assert (own.token_scheme, own.ca_file) == ("Token", "/ca.pem")
    assert (other.token_scheme, other.ca_file) == ("", "")
    assert not input_item(replace(rule, token=False), InputReference("/x"), application).token_scheme


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ({"sha256": "xyz"}, FailureCode.INVALID_REQUEST),
        ({"size": -1}, FailureCode.INVALID_REQUEST),
        ({"size": True}, FailureCode.INVALID_REQUEST),
        ({"size": 5 * 10**6 + 1}, FailureCode.OVER_CEILING),
    ],
)
def test_digest_and_size_are_checked(
    files: GatewayFiles, reference: Mapping[str, Any], code: FailureCode
) -> None:
    assert refused_input(files, "/x", **reference).code is code


def test_the_token_is_for_the_application_alone_and_in_a_file(files: GatewayFiles, tmp_path: Path) -> None:
    spec, _ = planned(files, request_with(), token_file=tmp_path / "token")
    profile = Profile.from_dict(spec.profile)
    assert profile.token_file == str(tmp_path / "token")
    tokens = Tokens(profile.token_hosts, profile.token_file)
    assert tokens.is_for("app.example.org", 443)
    assert not tokens.is_for("app.example.org", 8443) and not tokens.is_for("data.example.org", 443)
    assert "token_file" not in planned(files, request_with())[0].profile


def test_a_file_of_a_request_takes_the_place_of_the_template_s_own(tmp_path: Path) -> None:
    files = write_gateway(tmp_path / "lab")
    files.write("templates/pages/book.zip", "x")
    files.write("templates/pages/template.yaml", TEMPLATE.replace("most: 5MB", "most: 5MB, required: no"))
    files.write("templates/pages/params.yaml", PARAMS + "data: [book.zip, {url: train.py, to: more}]\n")
    names = [
        [item.name for item in planned(files, one)[0].data]
        for one in (request_with(inputs={}), request_with())
    ]
    assert names == [["book.zip", "train.py"], ["train.py", "book.zip"]]
    assert planned(files, request_with())[0].data[1].urls[0].startswith("https:")


def test_an_archive_is_unpacked_into_its_directory(files: GatewayFiles) -> None:
    rule = InputRule("book", unpack="yes")
    item = input_item(rule, InputReference("/a/x"), ApplicationSettings("https://app.example.org"))
    assert (item.to, item.file_name, item.unpack) == ("book", "", "yes")


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("https://store.example.org/put?X-Amz-Signature=abc", False),
        ("http://store.example.org/put", True),
        ("https://evil.example.org/put", True),
        ("https://me@store.example.org/put", True),
        ("file:///etc/passwd", True),
        ("", True),
    ],
)
def test_results_are_put_only_to_hosts_that_the_template_lists(
    files: GatewayFiles, url: str, wrong: bool
) -> None:
    request = request_with(uploads={"model": url})
    if wrong:
        assert refused(files, request).mistakes[0].startswith("uploads.model: ")
    else:
        planned(files, request)
    assert "known: model, log" in refused(files, request_with(uploads={"zzz": url})).mistakes[0]


JSON = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9) | st.lists(st.text())
KEYS = st.sampled_from(["epochs", "rate", "mode", "augment", "note", "cpus", "memory", "time", "x"])


@settings(deadline=None)
@given(st.dictionaries(KEYS, JSON), st.dictionaries(KEYS, JSON))
def test_whatever_the_values_are_they_make_a_run_or_a_refusal(
    files: GatewayFiles, parameters: dict[str, Any], resources: dict[str, Any]
) -> None:
    if not _READ:
        _READ.append((files.template(), files.settings(), files.parsed()))
    template, of_gateway, parsed = _READ[0]
    request = request_with(parameters=parameters, resources=resources)
    try:
        spec, plan = plan_run(
            template, request, of_gateway, parsed, user="", number=1, now=NOW, token_file=None
        )
    except RequestRefused as caught:
        assert caught.failure.mistakes and caught.failure.message.isprintable()
    else:
        assert len(arguments(spec.command, plan.params)) == 11


#: What is read once for all examples.
_READ: list[tuple[Template, GatewaySettings, Parsed]] = []


def test_the_new_fields_of_an_item_are_left_out_where_they_are_not_needed() -> None:
    plain = DataItem(("https://a/b",))
    assert set(plain.to_dict()) == {"urls", "digests", "size", "unpack", "to", "method"}
    full = DataItem(
        ("https://a/b",),
        writable=True,
        file_name="x",
        hosts=("a",),
        private_hosts=("b",),
        most=1,
        token_scheme="",
    )
    for item in (plain, full):
        assert DataItem.from_dict(item.to_dict()) == item
        assert DataPlan.from_dict({"items": [item.to_dict()]}).items == (item,)
