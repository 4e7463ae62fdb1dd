"""Status and headers of an answer, or trailers: read with limits on time and size, and by the letter."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Mapping

from outlast.node.data.troubles import Kind, Trouble
from outlast.node.data.web.incoming import Ended, Incoming, TooLong
from outlast.node.data.web.limits import HEAD

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: |$)")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: "100 Continue" and the like: not the answer yet.
_INTERIM = 10


@dataclass(frozen=True)
class Head:
    status: int
    #: Names in lower case; values of a name that came twice are joined with ", ".
    headers: Mapping[str, str]


def read_head(incoming: Incoming, seconds: float, deadline: float) -> Head:
    """Raises Trouble. `deadline`: when `seconds` are over, which the sentence then names."""
    who = incoming.connection.who
    try:
        for _ in range(_INTERIM):
            line = incoming.read_line(HEAD, deadline)
            found = _STATUS.match(line)
            if not found:
                raise Trouble(Kind.NONSENSE, "%s answers something that is not HTTP" % who)
            headers = read_fields(incoming, deadline)
            status = int(found.group(1))
            if status >= 200:
                return Head(status, headers)
    except Ended as end:
        if end.empty:
            raise Trouble(Kind.NO_ANSWER, "%s closed the connection without an answer" % who) from None
        raise Trouble(Kind.TRUNCATED, "%s closed the connection in the middle of its headers" % who) from None
    except TooLong:
        raise Trouble(Kind.NONSENSE, "%s sends headers of more than %d KiB" % (who, HEAD // 1024)) from None
    except socket.timeout:
        raise Trouble(Kind.NO_ANSWER, "%s did not answer the request within %g s" % (who, seconds)) from None
    except OSError as error:
        reason = (error.strerror or "it broke off").lower()
        raise Trouble(
            Kind.NO_ANSWER, "%s broke the connection before an answer: %s" % (who, reason)
        ) from None
    raise Trouble(Kind.NONSENSE, "%s says again and again that its answer is to come" % who)


def read_fields(incoming: Incoming, deadline: float) -> dict[str, str]:
    """Header or trailer lines up to the empty one. Raises OSError, Ended, TooLong; Trouble for nonsense."""
    fields: dict[str, str] = {}
    room = HEAD
    while True:
        try:
            line = incoming.read_line(room, deadline)
        except Ended:
            raise Ended(empty=False) from None  # something came before these lines
        if not line:
            return fields
        room -= len(line)
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name):
            raise Trouble(Kind.NONSENSE, "%s sends a line that is no header" % incoming.connection.who)
        key, text = name.decode("ascii").lower(), value.strip().decode("latin-1")
        fields[key] = "%s, %s" % (fields[key], text) if key in fields else text
