"""One connection, with TLS where that is wanted. One thread reads it, any may close it."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time

from outlast.node.staging.errors import ErrorKind, SourceError
from outlast.node.staging.http.tls import BadCertificates, context_for


class Connection:
    """`close` wakes the thread that reads; the descriptor is closed by whoever of the two leaves last."""

    def __init__(self, plain: socket.socket, who: str) -> None:
        self._socket = plain
        self._lock = threading.Lock()
        self._busy = False
        self._closed = False
        self._is_tls = False
        self._timeout = -1.0
        self._late: OSError | None = None
        self._poller = select.poll()
        #: The host, for sentences.
        self.who = who

    def receive_into(self, buffer: memoryview, seconds: float) -> int:
        """0 at the end of the connection. Raises OSError; socket.timeout after `seconds` without a byte."""
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError("closed on this side")
            self._busy = True
        count = 0
        try:
            if self._is_tls:
                self._set_timeout(0.0)
                count = self._fill(buffer, seconds)
            else:
                self._set_timeout(seconds)
                count = self._socket.recv_into(buffer)
        except OSError:
            if not self._closed:
                raise
        finally:
            with self._lock:
                self._busy = False
                if self._closed:
                    self._socket.close()
        if self._closed:
            raise ConnectionAbortedError("closed on this side")
        return count

    def _fill(self, buffer: memoryview, seconds: float) -> int:
        """A TLS record holds 16 KiB at most: all that have come make one read, which is far cheaper.

        What goes wrong after the first of them is for the next call: these bytes are good.
        """
        if self._late is not None:
            late, self._late = self._late, None
            raise late
        filled, deadline = 0, 0.0
        while filled < len(buffer):
            try:
                count = self._socket.recv_into(buffer[filled:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as want:
                if filled:
                    break
                # Bits of a record may trickle in for ever, and are no byte of the file.
                deadline = deadline or time.monotonic() + seconds
                self._wait(isinstance(want, ssl.SSLWantReadError), deadline - time.monotonic())
                continue
            except OSError as error:
                if not filled:
                    raise
                self._late = error
                break
            if count == 0:
                break
            filled += count
        return filled

    def _wait(self, for_reading: bool, seconds: float) -> None:
        self._poller.register(self._socket, select.POLLIN if for_reading else select.POLLOUT)
        if seconds <= 0 or not self._poller.poll(seconds * 1000):
            raise socket.timeout("timed out")

    def send(self, data: bytes, seconds: float) -> None:
        """Raises OSError."""
        self._set_timeout(seconds)
        self._socket.sendall(data)

    def _set_timeout(self, seconds: float) -> None:
        if seconds != self._timeout:  # it costs a system call
            self._socket.settimeout(seconds)
            self._timeout = seconds

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._busy:
                self._socket.close()
                return
            # SSLSocket's own shutdown takes TLS away from under the reader, which would then get the
            # ciphertext as if it were the file. A connection that has ended anyway has nobody to wake.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def secure(self, host: str, ca_file: str, deadline: float) -> None:
        """TLS from here on. Raises Trouble."""
        try:
            context = context_for(ca_file)
        except BadCertificates as error:
            raise SourceError(ErrorKind.UNTRUSTED, str(error)) from None
        self._set_timeout(max(0.01, deadline - time.monotonic()))
        try:
            # A connection that ends without a goodbye was cut, by whomever.
            self._socket = context.wrap_socket(self._socket, server_hostname=host, suppress_ragged_eofs=False)
            self._is_tls = True
        except ssl.SSLCertVerificationError as error:
            raise SourceError(
                ErrorKind.UNTRUSTED,
                "%s does not prove that it is that host: %s. If its certificate is signed by an authority of "
                "your site, name that authority's file in SSL_CERT_FILE"
                % (self.who, error.verify_message.rstrip(".")),
            ) from None
        except socket.timeout:
            raise SourceError(
                ErrorKind.NO_ANSWER, "%s took the connection, and no TLS came of it in time" % self.who
            ) from None
        except ssl.SSLError as error:
            if error.reason in (
                "WRONG_VERSION_NUMBER",
                "HTTP_REQUEST",
                "UNKNOWN_PROTOCOL",
                "RECORD_LAYER_FAILURE",
            ):
                raise SourceError(ErrorKind.NONSENSE, "%s speaks no TLS there" % self.who) from None
            reason = (error.reason or "it broke off").replace("_", " ").lower()
            raise SourceError(ErrorKind.NO_ANSWER, "no TLS with %s: %s" % (self.who, reason)) from None
        except OSError as error:
            reason = (error.strerror or "it broke off").lower()
            raise SourceError(ErrorKind.NO_ANSWER, "no TLS with %s: %s" % (self.who, reason)) from None
