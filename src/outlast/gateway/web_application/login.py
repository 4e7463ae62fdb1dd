"""Log-in at the web application: user and password for a token.

No exception contains the password, the user or the token, even if the application quotes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import urlencode

from outlast.errors import BadInput
from outlast.gateway.configuration.private_files import read_credentials
from outlast.gateway.settings import ApplicationSettings
from outlast.gateway.web_application.web_request import WebError, WebReply, WebTimeouts, addresses_of, request
from outlast.node.staging.http.url import BadUrl, Url
from outlast.text import printable
from outlast.untrusted_files import parse_json

#: What a token file may contain, as jobs read it.
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,8000}=*")
#: The most bytes of the reply, and the most characters of the reason in it that are shown.
_MOST_REPLY = 64 * 1024
_LONGEST_REASON = 200
_NOT_JSON = frozenset({400, 415})


class LoginError(Exception):
    """There is no token. `transient`: a later log-in may succeed without a change of the settings."""

    def __init__(self, transient: bool, text: str) -> None:
        super().__init__(text)
        self.transient = transient
        self.text = text


def fetch_token(settings: ApplicationSettings, timeouts: WebTimeouts) -> str:
    """Log in and return the token. Raise LoginError."""
    url, fields = _login_url(settings), _fields(settings)
    try:
        addresses = addresses_of(url, timeouts.connect)

        def post(kind: str, body: bytes) -> WebReply:
            headers = {"Content-Type": kind, "Accept": "application/json"}
            return request(
                "POST",
                url,
                addresses,
                headers,
                [body],
                len(body),
                timeouts=timeouts,
                ca_file=settings.ca_file,
                most_reply=_MOST_REPLY,
            )

        reply = post("application/json", json.dumps(fields).encode())
        if reply.status in _NOT_JSON:
            reply = post("application/x-www-form-urlencoded", urlencode(fields).encode())
    except WebError as error:
        raise LoginError(error.transient, "log-in at the application: %s" % error.text) from None
    return _token_in(reply, url.authority, fields)


def _login_url(settings: ApplicationSettings) -> Url:
    try:
        base = Url.parse(settings.url)
        url = Url.parse(settings.url.rstrip("/") + "/" + settings.login.lstrip("/"))
    except BadUrl as error:
        raise LoginError(False, str(error)) from None
    if url.authority != base.authority or url.query:
        raise LoginError(False, "application.login must be a path on %s" % base.authority)
    return url


def _fields(settings: ApplicationSettings) -> dict[str, str]:
    """Return the fields of a log-in; applications ignore those that they do not know."""
    if settings.credentials is None:
        raise LoginError(False, "application.credentials is missing: the file with username and password")
    try:
        found = read_credentials(settings.credentials, ("password",))
    except BadInput as error:
        raise LoginError(False, str(error)) from None
    username, email = found.get("username", ""), found.get("email", "")
    if not username and not email:
        raise LoginError(False, "%s has no username and no email" % settings.credentials)
    return {
        "username": username or email,
        "email": email or username,
        "password": found["password"],
    }


def _token_in(reply: WebReply, host: str, fields: Mapping[str, str]) -> str:
    refusal = reply.refusal(host)
    if refusal is not None:
        reason = _reason_in(reply, fields)
        text = "log-in at the application: %s%s" % (refusal.text, ": " + reason if reason else "")
        raise LoginError(refusal.transient, text)
    content = None if reply.cut else _parsed(reply)
    token = content.get("token") if isinstance(content, dict) else None
    if not isinstance(token, str) or not TOKEN.fullmatch(token):
        raise LoginError(False, "log-in at the application: the reply of %s contains no token" % host)
    return token


def _parsed(reply: WebReply) -> object:
    try:
        parsed: object = parse_json(reply.body)
    except ValueError:
        return None
    return parsed


def _reason_in(reply: WebReply, fields: Mapping[str, str]) -> str:
    """Return the reason that a refusal gives, in one short line, without what was sent."""
    content = None if reply.cut else _parsed(reply)
    if not isinstance(content, dict):
        return ""
    reason = content.get("detail") or content.get("non_field_errors")
    if isinstance(reason, list):
        reason = " ".join(each for each in reason if isinstance(each, str))
    if not isinstance(reason, str):
        return ""
    for secret in sorted(fields.values(), key=len, reverse=True):
        reason = reason.replace(secret, "…")
    return " ".join(printable(reason).split())[:_LONGEST_REASON]
