"""`outlast gateway init`: a directory with commented settings, two templates, and files for passwords."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from outlast.errors import BadInput, NotWritable
from outlast.filesystem import describe_error
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.templates import examples_directory

#: The files of the example `pages` that its templates need.
_CODE = ("pages.py", "marked.py", "model.py", "check_model.py")
_TEMPLATES = {"pages": (*_CODE, "book.zip"), "pages-rodan": _CODE}
_COPIED = (
    "gateway.yaml",
    *(f"templates/{name}/{file}" for name in _TEMPLATES for file in ("template.yaml", "params.yaml")),
)
#: Files in which the place of the gateway and of the program are written.
_FILLED = ("outlast-gateway.service", "crontab")
_CREDENTIALS = {
    "broker.yaml": "# The gateway's user at the broker\nuser:\npassword:\n",
    "application.yaml": "# The gateway's user at the web application\nusername:\npassword:\n",
}


def init_gateway(directory: Path) -> list[str]:
    """Create a gateway in a new or empty directory and return the names of its files.

    Raise BadInput if there is something in the directory, NotWritable if it cannot be written.
    """
    try:
        return _NewGateway(directory.absolute()).write()
    except OSError as error:
        raise NotWritable(
            f"{describe_error(error)}; choose a directory of your own for the gateway"
        ) from error


class _NewGateway:
    def __init__(self, root: Path) -> None:
        self.place = GatewayDirectory(root)
        self.examples = examples_directory()

    def write(self) -> list[str]:
        root = self.place.root
        if os.path.lexists(root) and (root.is_symlink() or not root.is_dir() or any(root.iterdir())):
            raise BadInput(f"{root} exists and is not an empty directory; choose another one for the gateway")
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
        for private in (self.place.credentials, self.place.tokens):
            private.mkdir(mode=0o700)
        written = [self._copy(self.examples / "gateway" / name, name) for name in _COPIED]
        for template, files in _TEMPLATES.items():
            source = self.examples / "pages"
            written += [self._copy(source / name, f"templates/{template}/{name}") for name in files]
        for name, text in _CREDENTIALS.items():
            written.append(self._create(f"credentials/{name}", text.encode(), 0o600))
        for name in _FILLED:
            text = (self.examples / "gateway" / name).read_text(encoding="utf-8")
            written.append(self._create(name, self._fill(text).encode()))
        return written

    def _copy(self, source: Path, name: str) -> str:
        return self._create(name, source.read_bytes())

    def _create(self, name: str, content: bytes, mode: int = 0o644) -> str:
        """Write a file that must not exist yet, and return its name."""
        path = self.place.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, mode), "wb") as file:
            file.write(content)
        return name

    def _fill(self, text: str) -> str:
        """Return the text with the place of the gateway, and of the program that wrote it."""
        return text.replace("DIRECTORY", shlex.quote(str(self.place.root))).replace("OUTLAST", _program())


def _program() -> str:
    """Return the command that starts Outlast, with its whole path: cron and systemd have a short PATH."""
    beside = Path(sys.executable).with_name("outlast")
    found = str(beside) if beside.is_file() else shutil.which("outlast")
    return shlex.quote(found) if found else f"{shlex.quote(sys.executable)} -m outlast"
