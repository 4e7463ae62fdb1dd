"""The application's token writes where the site puts results, and nowhere else, whatever a request names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outlast.gateway.planning.upload_targets import upload_mistakes
from outlast.gateway.settings import ApplicationSettings, Template
from outlast.gateway.web_application.upload_places import is_below, is_upload_place, needs_token
from outlast.node.staging.http.url import Url

APPLICATION = ApplicationSettings("https://app.example.org", "/api/auth/token/")
TEMPLATE = Template(
    "pages",
    Path("/pages"),
    upload_hosts=("app.example.org", "app.example.org:8443", "app.example.org.evil.org", "evil.org"),
    upload_path="/uploads/results/",
)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://app.example.org/results/1", True),
        ("https://app.example.org/", False),
        ("https://app.example.org:8443/results/1", False),
        ("http://app.example.org/results/1", False),
        ("https://app.example.org.evil.org/results/1", False),
        ("https://evil.org/https://app.example.org/", False),
    ],
)
def test_only_the_application_itself_gets_its_token(url: str, expected: bool) -> None:
    assert is_below(Url.parse(url), APPLICATION.url) is expected


@pytest.mark.parametrize(
    "path",
    [
        "/api/users/1/",
        "/uploads/",
        "/uploads/results",
        "/uploads/resultsX/a",
        "/uploads/results/../../api/users/1",
        "/uploads/results/%2e%2e/x",
        "/uploads/results/..%2f..%2fapi",
        "/uploads/results/%252e%252e/x",
        "/uploads/results/..;a/x",
        "/uploads/results//etc",
        "/uploads/results/a%5c..%5cb",
        "/Uploads/Results/a",
    ],
)
def test_a_place_outside_of_the_path_for_results_is_refused(path: str) -> None:
    url = "https://app.example.org" + path
    assert needs_token(Url.parse(url), APPLICATION)
    assert not is_upload_place(Url.parse(url), TEMPLATE, APPLICATION)
    assert list(upload_mistakes(TEMPLATE, {"model": url}, APPLICATION))


def test_a_place_below_the_path_for_results_is_accepted() -> None:
    url = "https://app.example.org/uploads/results/7/model%20a.npz"
    assert not list(upload_mistakes(TEMPLATE, {"model": url}, APPLICATION))
    assert list(upload_mistakes(replace(TEMPLATE, upload_path=""), {"model": url}, APPLICATION))
    below = ApplicationSettings("https://app.example.org/rodan", "/login")
    assert not is_upload_place(Url.parse(url), TEMPLATE, below)
    assert is_upload_place(Url.parse("https://app.example.org/rodan/uploads/results/7"), TEMPLATE, below)


@pytest.mark.parametrize(
    ("url", "application"),
    [
        ("https://app.example.org/anywhere?X-Amz-Signature=abc", APPLICATION),
        ("https://evil.org/anywhere", APPLICATION),
        ("https://app.example.org/anywhere", ApplicationSettings("https://app.example.org")),
    ],
)
def test_without_the_token_every_place_on_a_listed_host_is_accepted(
    url: str, application: ApplicationSettings
) -> None:
    assert not needs_token(Url.parse(url), application)
    assert not list(upload_mistakes(TEMPLATE, {"model": url}, application))
