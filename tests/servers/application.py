"""A stand-in for the REST side of a web application: log-in, downloads and uploads, with faults on request.

    with ApplicationServer({"/uploads/page.png": b"..."}) as application:
        application.plan_for("download", Behaviour(status=401))  # once; then it behaves well
        application.always_for("upload", Behaviour(status=500))
        ...
        assert application.paths_with_token() == ["/uploads/page.png"]

It records every request with its headers and its body: `requests`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections import defaultdict, deque
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from servers.behaviour import Behaviour
from servers.certificates import Certificate
from servers.misbehaving import Misbehaving
from servers.wire import Done, Request, Wire

LOGIN = "/api/auth/token/"
USERNAME, EMAIL, PASSWORD = "cluster-17", "c17@lab.example", "correct horse battery"


class ApplicationServer(Misbehaving):
    """The application, from `with` to its end. `token` may be changed at any time, as if it was reset.

    `user_field` is what a log-in is looked up by: `username`, or `email` as in later versions. `open_below`
    are paths that are served without a look at the token. `login_takes`: `json`, `form` or both.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        certificate: Certificate | None = None,
        host: str = "127.0.0.1",
        *,
        token: str = "9944b09199c62bcf9418ad846dd0e4bbdfc6ee4b",
        user_field: str = "email",
        login_takes: tuple[str, ...] = ("json", "form"),
        open_below: tuple[str, ...] = (),
        scheme: str = "Token",
    ) -> None:
        super().__init__(files, certificate, host)
        self.token = token
        self.scheme = scheme
        #: What was put, by path.
        self.uploaded: dict[str, bytes] = {}
        #: Respond to a PUT with a planned status before its body is read, and close.
        self.refuses_early = False
        self._user_field = user_field
        self._login_takes = login_takes
        self._open_below = open_below
        self._signatures: dict[str, str] = {}
        self._plans: defaultdict[str, deque[Behaviour]] = defaultdict(deque)
        self._always_by_kind: dict[str, Behaviour] = {}

    # For tests

    def plan_for(self, kind: str, *behaviours: Behaviour) -> None:
        """Append behaviours for the next requests of a kind: `login`, `download` or `upload`."""
        with self._changed:
            self._plans[kind].extend(behaviours)

    def always_for(self, kind: str, behaviour: Behaviour) -> None:
        """Behave like this for all requests of a kind after those that are planned."""
        with self._changed:
            self._always_by_kind[kind] = behaviour

    def presigned(self, path: str) -> str:
        """Return a URL that accepts a PUT without a token. Its query is a secret."""
        signature = hmac.new(b"key of the store", path.encode(), "sha256").hexdigest()
        with self._changed:
            self._signatures[path] = signature
        return self.url(path) + "?X-Amz-Signature=" + signature

    def received(self, kind: str) -> list[Request]:
        """Return the requests of a kind."""
        with self._changed:
            return [request for request in self.requests if kind_of(request) == kind]

    def paths_with_token(self) -> list[str]:
        """Return the paths of requests that had an Authorization header."""
        with self._changed:
            return [request.path for request in self.requests if "authorization" in request.headers]

    # One request

    def _next_behaviour(self, request: Request) -> Behaviour:
        kind = kind_of(request)
        if self._plans[kind]:
            return self._plans[kind].popleft()
        return self._always_by_kind.get(kind) or super()._next_behaviour(request)

    def _misbehave(self, wire: Wire, request: Request) -> bool | None:
        has_body = request.method in ("POST", "PUT")
        if has_body and not (self.refuses_early and request.behaviour.status) and not wire.read_body(request):
            raise Done
        broken = super()._misbehave(wire, request)
        return False if broken and self.refuses_early and has_body else broken

    def _send_found(self, wire: Wire, request: Request) -> bool:
        kind, path = kind_of(request), urlsplit(request.path).path
        if kind == "login":
            return self._log_in(wire, request)
        if kind == "upload":
            return self._take_upload(wire, request, path)
        if path.startswith(self._open_below) if self._open_below else False:
            return super()._send_found(wire, request)
        if not self._is_authorized(request):
            return self._send_json(wire, request, 401, {"detail": "Invalid token."})
        return super()._send_found(wire, request)

    def _is_authorized(self, request: Request) -> bool:
        return request.headers.get("authorization") == f"{self.scheme} {self.token}"

    def _log_in(self, wire: Wire, request: Request) -> bool:
        kind = "json" if "json" in request.headers.get("content-type", "") else "form"
        if kind not in self._login_takes:
            return self._send_json(wire, request, 415, {"detail": "Unsupported media type"})
        fields = _fields(kind, request.body)
        user = {"username": USERNAME, "email": EMAIL}[self._user_field]
        if self._user_field not in fields or "password" not in fields:
            return self._send_json(wire, request, 400, {self._user_field: ["This field is required."]})
        if (fields[self._user_field], fields["password"]) != (user, PASSWORD):
            # Worse than most: it quotes what it got.
            detail = "Wrong: %s / %s" % (fields[self._user_field], fields["password"])
            return self._send_json(wire, request, 401, {"detail": detail})
        return self._send_json(wire, request, 200, {"token": self.token, "user": {"username": USERNAME}})

    def _take_upload(self, wire: Wire, request: Request, path: str) -> bool:
        signature = parse_qs(urlsplit(request.path).query).get("X-Amz-Signature", [""])[0]
        is_signed = bool(signature) and signature == self._signatures.get(path)
        if signature and not is_signed:
            # As a real store does, with what would have been signed.
            return self._send_json(wire, request, 403, {"StringToSign": request.path})
        if not is_signed and not self._is_authorized(request):
            detail = "Invalid token: %s" % request.headers.get("authorization")
            return self._send_json(wire, request, 401, {"detail": detail})
        digest = base64.b64encode(hashlib.sha256(request.body).digest()).decode()
        if request.headers.get("repr-digest") != f"sha-256=:{digest}:":
            return self._send_json(wire, request, 400, {"detail": "the digest is not that of the body"})
        with self._changed:
            self.uploaded[path] = request.body
        return self._send_json(wire, request, 201, {})

    def _send_json(self, wire: Wire, request: Request, status: int, content: object) -> bool:
        body = json.dumps(content).encode()
        headers = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
        wire.send_head(status, request.behaviour, headers)
        wire.send(body)
        return True


def kind_of(request: Request) -> str:
    """Return `login`, `upload` or `download`."""
    return {"POST": "login", "PUT": "upload"}.get(request.method, "download")


def _fields(kind: str, body: bytes) -> dict[str, str]:
    if kind == "json":
        return dict(json.loads(body))
    return {name: values[0] for name, values in parse_qs(body.decode()).items()}
