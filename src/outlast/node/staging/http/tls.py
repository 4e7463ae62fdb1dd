"""The certificates to trust. Verification cannot be turned off."""

from __future__ import annotations

import os
import ssl
import threading

#: Where distributions keep their certificates: a Python built elsewhere may not search there.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_DIRECTORIES = ("/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/grid-security/certificates")

_lock = threading.Lock()
_contexts: dict[tuple[str, str, str], ssl.SSLContext] = {}


class BadCertificates(ValueError):
    """The certificates to trust cannot be read. The message is for the user."""


def context_for(ca_file: str) -> ssl.SSLContext:
    """Return a TLS context, cached because reading the system's certificates takes longer than a handshake.

    `ca_file` takes precedence over SSL_CERT_FILE and SSL_CERT_DIR, and these over the system's certificates.
    Raises BadCertificates.
    """
    key = (ca_file, os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", ""))
    with _lock:
        if key not in _contexts:
            _contexts[key] = _make_context(*key)
        return _contexts[key]


def _make_context(ca_file: str, env_file: str, env_directory: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and host name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if ca_file or env_file or env_directory:
        # OpenSSL silently ignores a variable that points nowhere, and then trusts no server at all.
        origin = "the CA file setting" if ca_file else "SSL_CERT_FILE or SSL_CERT_DIR"
        directory = "" if ca_file else env_directory
        try:
            context.load_verify_locations(ca_file or env_file or None, directory or None)
        except (OSError, ssl.SSLError) as error:
            path = ca_file or env_file or env_directory
            raise BadCertificates(
                "the certificates in %s, set by %s, cannot be read: %s"
                % (
                    path,
                    origin,
                    getattr(error, "strerror", None) or "it is not a PEM file of certificates",
                )
            ) from None
        return context
    context.load_default_certs()
    paths = ssl.get_default_verify_paths()
    if context.cert_store_stats()["x509_ca"] == 0 and not (paths.capath and os.listdir(paths.capath)):
        for bundle in _BUNDLES:
            if os.path.isfile(bundle):
                context.load_verify_locations(bundle)
                break
        else:
            for directory in _DIRECTORIES:
                if os.path.isdir(directory):
                    context.load_verify_locations(capath=directory)
    return context
