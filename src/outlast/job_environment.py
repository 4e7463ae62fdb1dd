"""The environment variables that a job gets: those that programs need to be found and run, and no secrets.

They are recorded when runs are submitted, so that every attempt gets the same ones, even if cron starts it.
"""

from __future__ import annotations

from collections.abc import Mapping

_NAMES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "MODULEPATH", "LOADEDMODULES", "XDG_CACHE_HOME"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_EXE", "CUDA_HOME", "CUDA_PATH"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONDONTWRITEBYTECODE"),
    )
)
_PREFIXES = ("LC_", "OMP_", "MKL_", "OPENBLAS_")
_PROXIES = frozenset(("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"))


def filter_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in `environ` that a job gets."""
    return {name: value for name, value in sorted(environ.items()) if _is_passed(name, value)}


def _is_passed(name: str, value: str) -> bool:
    if name in _PROXIES:
        # A proxy URL may contain a password.
        return "@" not in value
    return name in _NAMES or name.startswith(_PREFIXES)
