"""What each failure code means, and what its requester can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from outlast.gateway.requests import FailureCode, RequestFailure


class FailureText(NamedTuple):
    """What a code means, and the advice that a failure carries unless a better one is given."""

    meaning: str
    advice: str


TEXTS: Mapping[FailureCode, FailureText] = {
    FailureCode.INVALID_REQUEST: FailureText(
        "the message is no valid request; `mistakes` lists every mistake with its path",
        "Correct the request and send it under a new id.",
    ),
    FailureCode.UNSUPPORTED_VERSION: FailureText(
        "the request is written in a version of the format that this gateway does not read",
        'Write the request in version 1 ("outlast": 1).',
    ),
    FailureCode.UNKNOWN_TEMPLATE: FailureText(
        "the site has no template of this name",
        "Use the name of a template that the site offers.",
    ),
    FailureCode.FORBIDDEN: FailureText(
        "this user may not use the queue or the template, or the request belongs to another user",
        "Ask the site for the right to do this.",
    ),
    FailureCode.OVER_QUOTA: FailureText(
        "the site accepts no more requests of this template or user for now",
        "Wait until earlier requests have ended, then send it under a new id.",
    ),
    FailureCode.OVER_CEILING: FailureText(
        "the request asks for more than the template allows",
        "Request less, or ask the site for a higher ceiling.",
    ),
    FailureCode.DUPLICATE_ID: FailureText(
        "another request has this id; it is not affected",
        "Give every request an id of its own.",
    ),
    FailureCode.EXPIRED: FailureText(
        "the deadline or the expiration of the request was over before there was a result",
        "Send it under a new id, with a later deadline or a longer expiration.",
    ),
    FailureCode.CANCELLED: FailureText(
        "the request was cancelled, by a message or at the site",
        "Send it under a new id if it is wanted after all.",
    ),
    FailureCode.INPUT_REFUSED: FailureText(
        "an input is not what the template allows: its address, its size or its content",
        "Name files that the template allows, then send the request under a new id.",
    ),
    FailureCode.INPUT_UNAVAILABLE: FailureText(
        "an input could not be fetched",
        "Check that its address can be downloaded, then send the request under a new id.",
    ),
    FailureCode.OUT_OF_MEMORY: FailureText(
        "the training needs more memory than the request or the template allows",
        "Request more memory, or less work at a time.",
    ),
    FailureCode.OUT_OF_TIME: FailureText(
        "the training needs more time than the request or the template allows",
        "Request more time, or less work.",
    ),
    FailureCode.TRAINING_FAILED: FailureText(
        "the training ended with an error of its own, or its results did not pass their checks",
        "Correct the values or the inputs that caused the error, then send the request under a new id.",
    ),
    FailureCode.RESULT_UNDELIVERABLE: FailureText(
        "the training has finished, but its result could not be sent; it is kept at the site",
        "Ask the site for the kept result, or for a way to send results of this size.",
    ),
    FailureCode.SITE_UNAVAILABLE: FailureText(
        "the site cannot run the request now",
        "Send it again later, under a new id.",
    ),
    FailureCode.INTERNAL: FailureText(
        "an error in the gateway itself",
        "Send it again under a new id, and report the id of this one to the site.",
    ),
}


def failure(
    code: FailureCode, message: str, advice: str = "", mistakes: tuple[str, ...] = (), attempts: int = 0
) -> RequestFailure:
    """Return a failure; without `advice`, with the usual one for its code."""
    return RequestFailure(code, message, advice or TEXTS[code].advice, mistakes, attempts)
