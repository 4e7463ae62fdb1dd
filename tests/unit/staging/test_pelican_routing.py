"""What a director's answer means, and which server of a federation is asked when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.sources.pelican_responses import (
    Directions,
    MalformedResponse,
    directions,
    director_of,
)
from outlast.node.staging.sources.pelican_routing import CACHES, FRESH, Route


class ScriptedDirector:
    def __init__(self, caches: Sequence[str], origins: Sequence[str] = ("origin",)) -> None:
        self.names = {"caches": tuple(caches), "origins": tuple(origins)}
        self.asked: list[str] = []

    def caches(self) -> Directions:
        return self._answer("caches")

    def origins(self) -> Directions:
        return self._answer("origins")

    def _answer(self, kind: str) -> Directions:
        self.asked.append(kind)
        if not self.names[kind]:
            raise SourceError(ErrorKind.MISSING, "nobody has it")
        return Directions(self.names[kind], needs_token=False)


def urls(route: Route, choices: int = CACHES + 1) -> list[str]:
    return [route.server(choice).url for choice in range(choices)]


def test_the_director_is_found_in_the_description_of_the_federation() -> None:
    assert (
        director_of(b'{"director_endpoint": "https://director.example:8443/"}')
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
def test_a_description_that_names_no_director_over_tls_is_nonsense(body: bytes) -> None:
    with pytest.raises(MalformedResponse) as found:
        director_of(body)
    assert "secret" not in str(found.value)


def test_caches_come_in_the_order_of_their_priority() -> None:
    said = directions(
        {
            "location": "https://b/x",
            "link": '<https://c/x?a=1,2>; rel="duplicate"; pri=3; depth=1, '
            "<https://b/x>; rel=duplicate; pri=1,"
            ' <https://d/x>; rel="duplicate", <https://e/x>; rel="describedby"; pri=0,'
            '<https://a/x>;pri=2;rel="duplicate"',
            "x-pelican-namespace": "namespace=/x, require-token=false, collections-url=https://b",
        }
    )
    assert said == Directions(("https://b/x", "https://a/x", "https://c/x?a=1,2", "https://d/x"), False)


def test_without_a_list_the_redirect_itself_is_followed() -> None:
    assert directions({"location": "https://b/x"}) == Directions(("https://b/x",), False)


def test_a_server_without_tls_is_left_out_where_a_token_is_needed() -> None:
    link = '<http://a/x>; rel="duplicate"; pri=1, <https://b/x>; rel="duplicate"; pri=2'
    assert directions({"link": link}).servers == ("http://a/x", "https://b/x")
    needed = {"link": link, "x-pelican-namespace": "namespace=/x, require-token=true"}
    assert directions(needed) == Directions(("https://b/x",), True)


@pytest.mark.parametrize(
    "location",
    ["", "ftp://a/x", "/x", "https://u:p@a/x", "https://a:b/x", "https://a/\x01", "https://\xfc../x"],
)
def test_a_redirect_to_nowhere_is_nonsense(location: str) -> None:
    with pytest.raises(MalformedResponse):
        directions({"location": location})


def test_caches_are_asked_in_order_and_the_origin_last() -> None:
    director = ScriptedDirector(["a", "b", "c", "d"])
    assert urls(Route(director)) == ["a", "b", "c", "origin"]
    assert director.asked == ["caches", "origins"]


def test_with_fewer_caches_the_origin_takes_their_turns() -> None:
    assert urls(Route(ScriptedDirector(["a"], ["one", "two"]))) == ["a", "one", "two", "one"]


def test_the_director_is_asked_once_until_all_that_it_named_have_failed() -> None:
    director = ScriptedDirector(["a", "b"])
    route = Route(director)
    for _ in range(3):
        route.failed(route.server(0))
        assert urls(route, 2) == ["a", "b"]
    assert director.asked == ["caches"]
    route.failed(route.server(1))
    assert urls(route, 2) == ["a", "b"]
    assert director.asked == ["caches", "caches"]


def test_an_old_answer_is_asked_for_again() -> None:
    now = [0.0]
    director = ScriptedDirector(["a"])
    route = Route(director, lambda: now[0])
    route.server(0)
    now[0] = FRESH - 1
    route.server(0)
    assert director.asked == ["caches"]
    now[0] = FRESH + 1
    route.server(0)
    assert director.asked == ["caches", "caches"]


def test_a_choice_stays_with_its_server_when_the_director_changes_their_order() -> None:
    director = ScriptedDirector(["a", "b"])
    route = Route(director)
    for choice in (0, 1):
        route.failed(route.server(choice))
    director.names["caches"] = ("c", "b", "a")
    assert urls(route, 3) == ["a", "b", "c"]
    for choice in (0, 1, 2):
        route.failed(route.server(choice))
    director.names["caches"] = ("d", "b")
    assert urls(route) == ["d", "b", "origin", "origin"]


def test_what_the_director_says_is_what_every_choice_says() -> None:
    route = Route(ScriptedDirector([], []))
    for choice in range(CACHES + 1):
        with pytest.raises(SourceError) as found:
            route.server(choice)
        assert found.value.kind is ErrorKind.MISSING
