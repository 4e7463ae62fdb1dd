"""The `env:` section of params.yaml: variables for the training process.

A variable has a value, is passed on from the shell that submits, or is read from a file on the node. A secret
must be in a file: values and variables of the shell are recorded in the journal.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outlast.spec import document
from outlast.spec.document import Document, Path_, Scalar
from outlast.spec.mistakes import Mistake, shorten

EXAMPLE = "write {WANDB_MODE: offline, HF_HOME: {from: shell}, WANDB_API_KEY: {file: ~/.wandb-key}}"
LONGEST_VALUE = 30_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Names of variables that hold secrets. The endings are whole words: TOKENIZERS_PARALLELISM is none.
_SECRET = re.compile(r"(.*_)?(API_?KEY|ACCESS_KEY|SECRET_KEY|KEY|TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIALS?)")
#: A password in a URL.
_URL_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@")
_OWN = "OUTLAST_"
#: Variables that the scheduler or Outlast sets for each job.
_PER_JOB = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


@dataclass
class EnvKeys:
    """The variables: their values, and for secrets the paths of their files."""

    values: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    warnings: list[Mistake] = field(default_factory=list)


def read_env(
    source: Document, directory: Path, scheduler: str, environ: Mapping[str, str] = os.environ
) -> EnvKeys:
    """Return the variables in the section, and its mistakes; files are relative to `directory`."""
    found = EnvKeys()
    node = source.find(("env",))
    if node is None:
        return found
    if not isinstance(node, document.Mapping):
        found.mistakes.append(source.mistake(("env",), "must be a group of variables", EXAMPLE))
        return found
    for name, value in node.entries.items():
        at = ("env", name)
        wrong = _name_mistake(name)
        if wrong:
            found.mistakes.append(source.mistake(at, *wrong, of_key=True))
        elif isinstance(value, Scalar):
            _read_value(source, name, value, found)
        else:
            _read_origin(source, name, value, directory, environ, found)
        if name in _PER_JOB:
            text = "replaces the value that each job gets for its own share of the host"
            found.warnings.append(source.mistake(at, text))
    if scheduler == "htcondor":
        found.mistakes += _same_names(source, found.files)
    return found


def _name_mistake(name: str) -> tuple[str, str] | None:
    if not _NAME.fullmatch(name):
        return "is not the name of a variable", "use letters, digits and _"
    if name.startswith(_OWN):
        return f"begins with {_OWN}, which Outlast sets itself", "choose another name"
    return None


def _read_value(source: Document, name: str, value: Scalar, found: EnvKeys) -> None:
    at = ("env", name)
    if value.value is None and not value.quoted:
        found.mistakes.append(source.mistake(at, "has no value", 'write "" for an empty text'))
    elif _is_secret(name, value.text):
        text = "looks like a secret, which everybody who sees params.yaml or the journal could read"
        found.mistakes.append(source.mistake(at, text, _in_a_file(name)))
    elif len(value.text) > LONGEST_VALUE or "\0" in value.text:
        text = f"is longer than {LONGEST_VALUE:,} characters, or has a NUL character"
        found.mistakes.append(source.mistake(at, text))
    else:
        found.values[name] = value.text


def _read_origin(
    source: Document,
    name: str,
    value: document.Node,
    directory: Path,
    environ: Mapping[str, str],
    found: EnvKeys,
) -> None:
    """Read `{from: shell}` or `{file: PATH}`."""
    at: Path_ = ("env", name)
    entries = value.entries if isinstance(value, document.Mapping) else {}
    texts = {key: node.text for key, node in entries.items() if isinstance(node, Scalar)}
    if texts == {"from": "shell"}:
        wrong = _shell_mistake(name, environ)
        if wrong:
            found.mistakes.append(source.mistake(at, *wrong))
        else:
            found.values[name] = environ[name]
    elif texts.keys() == {"file"} and texts["file"]:
        path = str(directory.absolute() / Path(texts["file"]).expanduser())
        for text, hint in _file_mistakes(path):
            found.mistakes.append(source.mistake((*at, "file"), text, hint))
        found.files[name] = path
    else:
        hint = "write a value, {from: shell} or {file: PATH}"
        found.mistakes.append(source.mistake(at, "is neither a value nor a place to take it from", hint))


def _shell_mistake(name: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    if name not in environ:
        return "is not set in this shell", f"export {name}=…, or remove the line"
    if _is_secret(name, environ[name]):
        return "looks like a secret, which would be recorded in the journal", _in_a_file(name)
    if len(environ[name]) > LONGEST_VALUE:
        return f"has more than {LONGEST_VALUE:,} characters in this shell", "pass it in a file"
    return None


def _is_secret(name: str, value: str) -> bool:
    return bool(_SECRET.fullmatch(name.upper()) or _URL_PASSWORD.search(value))


def _in_a_file(name: str) -> str:
    return f"put it into a file of mode 600 and write {shorten(name)}: {{file: PATH}}"


def _file_mistakes(path: str) -> Iterator[tuple[str, str]]:
    shown = shorten(path)
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        yield f"{shown} cannot be read: {reason}", "the job reads the secret from there"
        return
    if not stat.S_ISREG(mode):
        yield f"{shown} is not a file", ""
    elif mode & 0o077:
        yield f"{shown} can be read by others (mode {mode & 0o777:03o})", f"chmod 600 {shown}"


def _same_names(source: Document, files: Mapping[str, str]) -> Iterator[Mistake]:
    """Yield a mistake for each file whose name another one has: HTCondor puts them into one directory."""
    first: dict[str, str] = {}
    for name, path in files.items():
        base = Path(path).name
        if first.setdefault(base, path) != path:
            text = f"{shorten(base)} has the same name as {shorten(first[base])}"
            yield source.mistake(("env", name, "file"), text, "HTCondor transfers both into one directory")
