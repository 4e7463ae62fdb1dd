"""Errors of results on their way to the requester."""

from __future__ import annotations


class UploadError(Exception):
    """A file of a result was not put where it belongs. `transient`: trying again may succeed.

    `status` is that of the server's response, if there was one: after 401 a new token may help. The text
    contains no query of a URL and no token.
    """

    def __init__(self, transient: bool, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.transient = transient
        self.text = text
        self.status = status


class ResultChanged(UploadError):
    """A file of a result is not the one that was collected."""

    def __init__(self, name: str) -> None:
        super().__init__(False, "the file for %r changed after the run finished" % name)
