"""From a finished run to the body of its answer: collected, put where it belongs, encoded into a file.

It runs in a worker beside the service, may take as long as an upload takes, and can be repeated.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from outlast.exchange.experiment import Experiment
from outlast.filesystem import describe_error
from outlast.gateway.answers.choose import Way, choose
from outlast.gateway.answers.collect import collect, open_result
from outlast.gateway.answers.errors import UploadError
from outlast.gateway.answers.place import place
from outlast.gateway.answers.upload import UploadTarget, upload
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.message_formats.result_encoding import ContentChanged, write_result
from outlast.gateway.record.rows import RecordedRequest
from outlast.gateway.requests import FailureCode, RequestFailure, ResultFile
from outlast.gateway.settings import ApplicationSettings, Template
from outlast.gateway.web_application.application import Application
from outlast.gateway.web_application.login import LoginError
from outlast.gateway.web_application.upload_places import is_below, is_upload_place, needs_token
from outlast.untrusted_files import create_file, open_directory


class NotNow(Exception):
    """The result cannot be delivered now; later it may be."""


@dataclass(frozen=True)
class DeliveredResult:
    """The body of an answer, in a file of `answers/`."""

    file: str
    size: int


#: Prepares the result of a request. Raises NotNow.
Deliver = Callable[[RecordedRequest], DeliveredResult | RequestFailure]


class ResultDelivery:
    """Prepares results; used by several threads. `most` returns the bytes that an answer may have now."""

    def __init__(
        self,
        directory: GatewayDirectory,
        templates: Mapping[str, Template],
        settings: ApplicationSettings,
        application: Application,
        lock: threading.Lock,
        most: Callable[[], int],
        now: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._templates = templates
        self._settings = settings
        self._application = application
        #: `application` is used by one thread at a time.
        self._lock = lock
        self._most = most
        self._now = now
        #: Requests for which the application's token was fetched anew.
        self._renewed: set[int] = set()

    def __call__(self, request: RecordedRequest) -> DeliveredResult | RequestFailure:
        """Return the body of the answer to a request whose run has finished, or why it has no result."""
        template = self._templates.get(request.template)
        if template is None:
            return _undeliverable("its template was removed from the site", request)
        results = Experiment(self._directory.experiment(template.name)).result(request.run)
        try:
            files = collect(results, template.answer)
            if isinstance(files, RequestFailure):
                return files
            ways = choose(
                files, request.dialect, self._most(), request.body.uploads, template.upload_directory
            )
            if isinstance(ways, RequestFailure):
                return ways
            put = [self._put(file, ways[file.name], request, template) for file in files]
            return self._encode(request, put)
        except UploadError as error:
            if error.transient:
                raise NotNow(error.text) from None
            return _undeliverable(error.text, request)
        except ContentChanged as error:
            return _undeliverable(str(error), request)
        except OSError as error:
            raise NotNow(describe_error(error)) from error

    def _put(self, file: ResultFile, way: Way, request: RecordedRequest, template: Template) -> ResultFile:
        """Put a file where its requester finds it, and return it with its place; without one, by value."""
        results = Experiment(self._directory.experiment(template.name)).result(request.run)
        if way is Way.DIRECTORY:
            assert template.upload_directory is not None
            return place(results, file, template.upload_directory, request.number)
        if way is Way.VALUE:
            return file
        target = UploadTarget.parse(request.body.uploads[file.name], template.upload_hosts)
        is_own = is_below(target.url, self._settings.url)
        # The request names the place; the token, which may write elsewhere too, is for those of the site.
        with_token = needs_token(target.url, self._settings)
        if with_token and not is_upload_place(target.url, template, self._settings):
            raise UploadError(False, f"{file.name!r}: the site puts no results there")
        authorization = self._authorization() if with_token else ""
        ca_file = self._settings.ca_file if is_own else None
        try:
            return upload(results, file, target, authorization=authorization, ca_file=ca_file)
        except UploadError as error:
            if not with_token or error.status != 401 or request.number in self._renewed:
                raise
            # Once: a new token that is refused, too, is not what is wrong.
            self._renew(request, error.text)
            raise UploadError(True, error.text, error.status) from None

    def _authorization(self) -> str:
        with self._lock:
            try:
                return self._application.authorization(self._now())
            except LoginError as error:
                # Whatever is wrong, the request is not: it waits until the site can log in again.
                raise UploadError(True, error.text) from None

    def _renew(self, request: RecordedRequest, reason: str) -> None:
        """Log in again, because the token was refused; later, if the last log-in was only just now."""
        with self._lock:
            try:
                is_renewed = self._application.renew(reason, self._now())
            except LoginError as error:
                raise UploadError(True, error.text) from None
            if is_renewed:
                self._renewed.add(request.number)

    def _encode(self, request: RecordedRequest, files: Sequence[ResultFile]) -> DeliveredResult:
        """Write the answer into a file, durably: the record may name it afterwards."""
        name = "%06d.json" % request.number
        temporary = ".%s.%d.tmp" % (name, threading.get_ident())
        folder = open_directory(self._directory.answers)
        results = Experiment(self._directory.experiment(request.template)).result(request.run)
        try:
            with create_file(temporary, folder) as out, ExitStack() as stack:
                os.fchmod(out.fileno(), 0o600)
                contents = [(file, stack.enter_context(_opened(results, file))) for file in files]
                facts = {"template": request.template, "run": request.run}
                write_result(request.dialect, out, request.id, contents, facts)
                out.flush()
                os.fsync(out.fileno())
                size = os.fstat(out.fileno()).st_size
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        finally:
            os.close(folder)
        return DeliveredResult(name, size)


@contextmanager
def _opened(results: Path, file: ResultFile) -> Iterator[BinaryIO | None]:
    if file.place:
        yield None
        return
    with open_result(results, file) as stream:
        yield stream


def _undeliverable(reason: str, request: RecordedRequest) -> RequestFailure:
    return RequestFailure(
        FailureCode.RESULT_UNDELIVERABLE,
        "The training has finished, but its result cannot be delivered: %s" % reason,
        "The site keeps it as %s." % request.run,
    )
