"""From a finished run to its answer, against an application that misbehaves; and no secret anywhere else."""

from __future__ import annotations

import base64
import json
import logging
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.exchange.experiment import Experiment
from outlast.gateway.answers.deliver import DeliveredResult, NotNow, ResultDelivery
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.record.rows import RecordedRequest
from outlast.gateway.requests import FailureCode, RequestFailure, RequestState, TrainingRequest
from outlast.gateway.settings import ApplicationSettings, Template
from outlast.gateway.web_application.application import SHORTEST_PAUSE, Application
from outlast.gateway.web_application.web_request import WebTimeouts
from servers.application import LOGIN, PASSWORD, USERNAME, ApplicationServer
from servers.behaviour import Behaviour

MODEL = b"weights of a model"
SIGNATURE = "X-Amz-Signature"


class Site:
    """A gateway's directory with the result of one run, and an application beside it."""

    def __init__(self, root: Path, server: ApplicationServer) -> None:
        self.server = server
        self.directory = GatewayDirectory(root)
        self.now = 1_800_000_000.0
        for place in (self.directory.answers, self.directory.tokens, self.directory.credentials):
            place.mkdir(parents=True, mode=0o700)
        credentials = self.directory.credentials / "application.yaml"
        credentials.write_text(f"username: {USERNAME}\nemail: c17@lab.example\npassword: {PASSWORD}\n")
        credentials.chmod(0o600)
        self.results = Experiment(self.directory.experiment("pages")).result("request-7")
        self.results.mkdir(parents=True)
        (self.results / "model.h5").write_bytes(MODEL)
        settings = ApplicationSettings(server.url("").rstrip("/"), LOGIN, credentials)
        template = Template(
            "pages",
            self.directory.template("pages"),
            answer={"Model 0": "model.h5"},
            upload_hosts=("127.0.0.1:%d" % server.port,),
            upload_path="/results/",
        )
        self.most = 10**6
        self.deliver = ResultDelivery(
            self.directory,
            {"pages": template},
            settings,
            Application(settings, self.directory, timeouts=WebTimeouts(total=40)),
            threading.Lock(),
            lambda: self.most,
            lambda: self.now,
        )

    def request(self, url: str = "", dialect: str = "outlast") -> RecordedRequest:
        body = TrainingRequest("pages", uploads={"Model 0": url} if url else {})
        return RecordedRequest(
            number=7,
            id=b"an id",
            digest="0" * 64,
            queue="train",
            dialect=dialect,
            template="pages",
            user="",
            reply_to="results",
            correlation=b"an id",
            at=0.0,
            deadline=None,
            state=RequestState.ENDED,
            body=body,
            run="request-7",
            submitted=0.0,
            started=0.0,
            ended=0.0,
            answered=None,
            cancel="",
            failure=None,
            note="",
        )

    def answer(self, request: RecordedRequest) -> object:
        found = self.deliver(request)
        assert isinstance(found, DeliveredResult), found
        file = self.directory.answers / found.file
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        return json.loads(file.read_bytes())

    def put_off(self, request: RecordedRequest) -> str:
        with pytest.raises(NotNow) as raised:
            self.deliver(request)
        return str(raised.value)

    def undeliverable(self, request: RecordedRequest) -> RequestFailure:
        found = self.deliver(request)
        assert isinstance(found, RequestFailure) and found.code is FailureCode.RESULT_UNDELIVERABLE
        assert (self.results / "model.h5").read_bytes() == MODEL
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ApplicationServer({}) as server:
        yield Site(tmp_path / "lab", server)


def test_a_small_result_is_in_the_answer(site: Site) -> None:
    answer = json.dumps(site.answer(site.request()))
    assert base64.b64encode(MODEL).decode() in answer
    rodan = site.answer(site.request(dialect="rodan"))
    assert isinstance(rodan, dict) and base64.decodebytes(rodan["Model 0"].encode()) == MODEL
    assert site.server.requests == []


def test_a_result_over_the_limit_that_cannot_go_by_reference_is_kept(site: Site) -> None:
    site.most = 1000
    assert "at most" in site.undeliverable(site.request(dialect="rodan")).message


def test_a_result_is_put_where_the_request_wants_it(site: Site) -> None:
    answer = json.dumps(site.answer(site.request(site.server.presigned("/store/a"))))
    assert site.server.uploaded == {"/store/a": MODEL}
    assert site.server.paths_with_token() == []
    assert site.server.url("/store/a") in answer and SIGNATURE not in answer
    assert base64.b64encode(MODEL).decode() not in answer


def test_500_is_tried_again_and_403_is_not(site: Site) -> None:
    request = site.request(site.server.presigned("/store/a"))
    site.server.plan_for("upload", *[Behaviour(status=500)] * 3, Behaviour(status=403))
    for _ in range(3):
        assert "500" in site.put_off(request)
    assert "403" in site.undeliverable(request).message
    site.answer(request)
    assert len(site.server.received("upload")) == 5


def test_a_token_that_is_refused_is_fetched_anew_once(site: Site) -> None:
    request = site.request(site.server.url("/results/7"))
    site.server.plan_for("upload", Behaviour(status=401))
    site.put_off(request)
    site.now += SHORTEST_PAUSE
    site.answer(request)
    assert site.server.uploaded == {"/results/7": MODEL}


def test_a_token_that_is_refused_just_after_its_log_in_is_fetched_anew_later(site: Site) -> None:
    request = site.request(site.server.url("/results/7"))
    site.deliver(request)
    site.server.token = "the-application-has-reset-it"
    for _ in range(3):
        assert "401" in site.put_off(request)
    site.now += SHORTEST_PAUSE
    site.put_off(request)
    site.answer(request)
    assert len(site.server.received("login")) == 2


def test_a_result_waits_while_the_site_cannot_log_in(site: Site) -> None:
    request = site.request(site.server.url("/results/7"))
    site.server.plan_for("login", *[Behaviour(status=401)] * 2)
    credentials = site.directory.credentials / "application.yaml"
    for _ in range(2):
        assert "log-in" in site.put_off(request)
        site.now += 10 * SHORTEST_PAUSE
    credentials.chmod(0o644)
    assert "644" in site.put_off(request)
    credentials.chmod(0o600)
    site.now += 100 * SHORTEST_PAUSE
    site.answer(request)
    assert site.server.uploaded == {"/results/7": MODEL}


@pytest.mark.parametrize(
    "path", ["/api/users/1/", "/results", "/results/../api/users/1/", "/results/..%2fapi"]
)
def test_the_token_is_not_used_where_the_site_puts_no_results(site: Site, path: str) -> None:
    site.undeliverable(site.request(site.server.url("") + path))
    assert site.server.requests == []


def test_a_token_that_is_refused_for_ever_is_a_failure(site: Site) -> None:
    request = site.request(site.server.url("/results/7"))
    site.deliver(request)
    site.server.always_for("upload", Behaviour(status=401))
    site.now += 10 * SHORTEST_PAUSE
    site.put_off(request)
    for _ in range(3):
        site.now += 10 * SHORTEST_PAUSE
        assert "401" in site.undeliverable(request).message
    assert len(site.server.received("login")) == 2


def test_no_secret_is_in_an_answer_an_error_a_log_or_a_file_but_its_own(
    site: Site, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    signed = site.request(site.server.presigned("/store/a"))
    own = site.request(site.server.url("/results/7"))
    texts = [json.dumps(site.answer(signed)), json.dumps(site.answer(own)), repr(signed)]
    for behaviour in (
        Behaviour(status=403),
        Behaviour(redirect="https://store.example.org/b?X-Amz-Signature=1"),
        Behaviour(status=401),
    ):
        site.server.plan_for("upload", behaviour)
        texts.append(repr(site.deliver(signed)))
    site.server.plan_for("upload", Behaviour(status=500), Behaviour(rubbish=b"HTTP/1.1 " + b"x" * 9000))
    texts += [site.put_off(signed), site.put_off(signed)]
    # The application quotes what it got.
    site.server.token = "another-token-of-the-application"
    site.now += SHORTEST_PAUSE
    texts.append(site.put_off(own))
    secrets = (
        *("9944b09199c62bcf9418ad846dd0e4bbdfc6ee4b", site.server.token, PASSWORD, USERNAME, SIGNATURE),
        site.server.presigned("/store/a").rpartition("=")[2],
    )
    out, err = capfd.readouterr()
    everything = "\n".join([*texts, caplog.text, out, err])
    exempt = (site.directory.tokens / "application", site.directory.credentials / "application.yaml")
    files = [one for one in site.directory.root.rglob("*") if one.is_file() and one not in exempt]
    assert files
    for secret in secrets:
        assert secret not in everything
        assert [one for one in files if secret.encode() in one.read_bytes()] == []
    assert site.server.token in exempt[0].read_text()
