"""Parsing the responses of a director, and choosing the servers of a federation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.sources.pelican_responses import (
    Directions,
    MalformedResponse,
    parse_directions,
    parse_discovery,
)
from outlast.node.staging.sources.pelican_routing import CACHES, MAX_AGE, Route


class ScriptedDirector:
    """A director that names these servers and records its queries."""

    def __init__(self, caches: Sequence[str], origins: Sequence[str] = ("origin",)) -> None:
        self.names = {"caches": tuple(caches), "origins": tuple(origins)}
        self.queries: list[str] = []

    def caches(self) -> Directions:
        return self._respond("caches")

    def origins(self) -> Directions:
        return self._respond("origins")

    def _respond(self, kind: str) -> Directions:
        self.queries.append(kind)
        if not self.names[kind]:
            raise SourceError(ErrorKind.MISSING, "no server has it")
        return Directions(self.names[kind], needs_token=False)


def urls(route: Route, choices: int = CACHES + 1) -> list[str]:
    return [route.server(choice).url for choice in range(choices)]


def test_the_director_is_found_in_the_description_of_the_federation() -> None:
    assert (
        parse_discovery(b'{"director_endpoint": "https://director.example:8443/"}')
        == "https://director.example:8443"
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"\xff\xfe",
        b"{}",
        b'{"director_endpoint": 7}',
        b'{"director_endpoint": "http://director.example"}',
        b'{"director_endpoint": "https://"}',
        b'{"director_endpoint": "https://user:secret@director.example"}',
        b'{"director_endpoint": "https://a b"}',
        b'{"director_endpoint": "https://[::1"}',
        b'{"director_endpoint": "https://host:99999"}',
        b"[" * 100_000,
    ],
)
def test_a_description_that_names_no_director_with_tls_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedResponse) as caught:
        parse_discovery(body)
    assert "secret" not in str(caught.value)


def test_caches_come_in_the_order_of_their_priority() -> None:
    found = parse_directions(
        {
            "location": "https://b/x",
            "link": '<https://c/x?a=1,2>; rel="duplicate"; pri=3; depth=1, '
            "<https://b/x>; rel=duplicate; pri=1,"
            ' <https://d/x>; rel="duplicate", <https://e/x>; rel="describedby"; pri=0,'
            '<https://a/x>;pri=2;rel="duplicate"',
            "x-pelican-namespace": "namespace=/x, require-token=false, collections-url=https://b",
        }
    )
    assert found == Directions(("https://b/x", "https://a/x", "https://c/x?a=1,2", "https://d/x"), False)


def test_without_a_list_the_redirect_itself_is_followed() -> None:
    assert parse_directions({"location": "https://b/x"}) == Directions(("https://b/x",), False)


def test_a_server_without_tls_is_left_out_if_a_token_is_needed() -> None:
    link = '<http://a/x>; rel="duplicate"; pri=1, <https://b/x>; rel="duplicate"; pri=2'
    assert parse_directions({"link": link}).servers == ("http://a/x", "https://b/x")
    needed = {"link": link, "x-pelican-namespace": "namespace=/x, require-token=true"}
    assert parse_directions(needed) == Directions(("https://b/x",), True)


@pytest.mark.parametrize(
    "location",
    ["", "ftp://a/x", "/x", "https://u:p@a/x", "https://a:b/x", "https://a/\x01", "https://\xfc../x"],
)
def test_a_redirect_to_an_invalid_url_is_malformed(location: str) -> None:
    with pytest.raises(MalformedResponse):
        parse_directions({"location": location})


def test_caches_are_used_in_order_and_the_origin_last() -> None:
    director = ScriptedDirector(["a", "b", "c", "d"])
    assert urls(Route(director)) == ["a", "b", "c", "origin"]
    assert director.queries == ["caches", "origins"]


def test_origins_fill_the_choices_that_have_no_cache() -> None:
    assert urls(Route(ScriptedDirector(["a"], ["one", "two"]))) == ["a", "one", "two", "one"]


def test_the_director_is_queried_once_until_all_servers_that_it_named_have_failed() -> None:
    director = ScriptedDirector(["a", "b"])
    route = Route(director)
    for _ in range(3):
        route.mark_failed(route.server(0))
        assert urls(route, 2) == ["a", "b"]
    assert director.queries == ["caches"]
    route.mark_failed(route.server(1))
    assert urls(route, 2) == ["a", "b"]
    assert director.queries == ["caches", "caches"]


def test_an_expired_response_is_requested_again() -> None:
    now = [0.0]
    director = ScriptedDirector(["a"])
    route = Route(director, lambda: now[0])
    route.server(0)
    now[0] = MAX_AGE - 1
    route.server(0)
    assert director.queries == ["caches"]
    now[0] = MAX_AGE + 1
    route.server(0)
    assert director.queries == ["caches", "caches"]


def test_a_choice_keeps_its_server_when_the_director_changes_the_order() -> None:
    director = ScriptedDirector(["a", "b"])
    route = Route(director)
    for choice in (0, 1):
        route.mark_failed(route.server(choice))
    director.names["caches"] = ("c", "b", "a")
    assert urls(route, 3) == ["a", "b", "c"]
    for choice in (0, 1, 2):
        route.mark_failed(route.server(choice))
    director.names["caches"] = ("d", "b")
    assert urls(route) == ["d", "b", "origin", "origin"]


def test_an_error_of_the_director_is_raised_for_every_choice() -> None:
    route = Route(ScriptedDirector([], []))
    for choice in range(CACHES + 1):
        with pytest.raises(SourceError) as caught:
            route.server(choice)
        assert caught.value.kind is ErrorKind.MISSING
