"""Resolution of URLs into sources: the supported schemes, and the errors for all others."""

from __future__ import annotations

import pytest

from outlast.node.staging.http.http_settings import HttpSettings
from outlast.node.staging.item import DataItem
from outlast.node.staging.plan import DataPlan
from outlast.node.staging.sources.file_source import path_of
from outlast.node.staging.sources.pelican_source import OSDF, PelicanUrl
from outlast.node.staging.sources.resolve import DISCOVERY_VARIABLE, osdf_host, sources_for
from outlast.node.staging.sources.tokens import Tokens


def names(*urls: str) -> list[str]:
    return [source.name for source in sources_for(DataItem(urls), HttpSettings(), Tokens(), {})]


def test_mirrors_keep_their_order_and_a_federation_adds_its_caches_and_its_origin() -> None:
    assert names("https://a/x?key=hidden", "osdf:///ns/x?key=hidden", "file:///d/x", "/d/y") == [
        "https://a/x",
        "osdf:///ns/x (choice 1)",
        "osdf:///ns/x (choice 2)",
        "osdf:///ns/x (choice 3)",
        "osdf:///ns/x (the origin)",
        "/d/x",
        "/d/y",
    ]


@pytest.mark.parametrize("url", ["osdf:///ns/x", "osdf://ns/x"])
def test_an_osdf_url_has_no_host_with_two_or_three_slashes(url: str) -> None:
    assert PelicanUrl.parse(url) == PelicanUrl(OSDF, "/ns/x", "", "osdf:///ns/x")


def test_a_pelican_url_names_its_federation() -> None:
    found = PelicanUrl.parse("pelican://fed.example:8443/ns/x?directread&a=b")
    assert (found.federation, found.path, found.query) == ("fed.example:8443", "/ns/x", "directread&a=b")
    assert found.name == "pelican://fed.example:8443/ns/x"
    assert found.from_origin
    assert not PelicanUrl.parse("pelican://fed.example/ns/x?a=directread").from_origin


@pytest.mark.parametrize(
    "url",
    [
        "osdf://",
        "osdf:///",
        "pelican:///ns/x",
        "pelican://fed.example",
        "pelican://fed.example:port/x",
        "pelican://user:hidden@fed.example/x",
        "pelican://user:hidden@fed.example",
        "osdf:///ns/with space?hidden",
        "ftp://host/x?hidden",
        "s3://bucket/x",
        "file://elsewhere/x",
    ],
)
def test_an_invalid_url_is_refused_and_the_message_contains_no_secret(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        names(url)
    assert "hidden" not in str(caught.value)


def test_another_osdf_can_be_configured_by_host_or_url() -> None:
    assert osdf_host({}) == OSDF
    for configured in ("fed.example:8443", "https://fed.example:8443", "https://fed.example:8443/"):
        assert osdf_host({DISCOVERY_VARIABLE: configured}) == "fed.example:8443"
    with pytest.raises(ValueError, match=DISCOVERY_VARIABLE):
        osdf_host({DISCOVERY_VARIABLE: "http://fed.example"})


@pytest.mark.parametrize("name", ["a#b.tar", "a?b.tar", "a%20b.tar", "50%.tar", "12:30.tar"])
def test_special_characters_in_a_path_have_no_meaning(name: str) -> None:
    item = DataItem((name,))
    assert item.name == name
    (url,) = DataPlan(items=(item,)).with_absolute_paths("/job").items[0].urls
    assert (DataItem((url,)).name, path_of(url)) == (name, "/job/" + name)
    (source,) = sources_for(DataItem((url,)), HttpSettings(), Tokens())
    assert source.name == "/job/" + name
