"""Which certificates prove who a server is. There is no way to do without."""

from __future__ import annotations

import os
import ssl
import threading

#: Where systems keep their certificates; a Python that was built elsewhere does not look there.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_FOLDERS = ("/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/grid-security/certificates")

_lock = threading.Lock()
_made: dict[tuple[str, str, str], ssl.SSLContext] = {}


class BadCertificates(ValueError):
    """A sentence for the user: the certificates to trust cannot be read."""


def context_for(ca_file: str) -> ssl.SSLContext:
    """One context for each choice of certificates: reading the system's takes longer than a handshake.

    `ca_file` goes before SSL_CERT_FILE and SSL_CERT_DIR, and these before the system's. Raises BadTrust.
    """
    key = (ca_file, os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", ""))
    with _lock:
        if key not in _made:
            _made[key] = _make(*key)
        return _made[key]


def _make(ca_file: str, env_file: str, env_folder: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and host name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if ca_file or env_file or env_folder:
        # OpenSSL says nothing of a variable that points nowhere, and then trusts nobody.
        origin = "the setting for certificates" if ca_file else "SSL_CERT_FILE or SSL_CERT_DIR"
        folder = "" if ca_file else env_folder
        try:
            context.load_verify_locations(ca_file or env_file or None, folder or None)
        except (OSError, ssl.SSLError) as error:
            place = ca_file or env_file or env_folder
            raise BadCertificates(
                "the certificates in %s, named by %s, cannot be read: %s"
                % (
                    place,
                    origin,
                    getattr(error, "strerror", None) or "it is no file of certificates in PEM format",
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
            for folder in _FOLDERS:
                if os.path.isdir(folder):
                    context.load_verify_locations(capath=folder)
    return context
