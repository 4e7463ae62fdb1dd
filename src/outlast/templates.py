"""The templates of `outlast init`: where they are, and how one becomes an experiment directory."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from outlast.errors import BadInput, NotWritable

DEFAULT = "hello"
PARAMS = "params.yaml"


def examples_directory() -> Path:
    """Return where the templates are: in the installed package, or beside `src/` in a source checkout."""
    import outlast

    package = Path(outlast.__file__).resolve().parent
    installed = package / "examples"
    return installed if installed.is_dir() else package.parents[1] / "examples"


def templates() -> dict[str, Path]:
    """Return the templates by name, the default first."""
    try:
        found = sorted(path.parent for path in examples_directory().glob("*/params.yaml"))
    except OSError as error:
        raise BadInput(f"the templates cannot be read: {error}; reinstall outlast") from error
    return {path.name: path for path in sorted(found, key=lambda path: path.name != DEFAULT)}


def describe(template: Path) -> str:
    """Return the first sentence of the template's README, below its title."""
    try:
        lines = (template / "README.md").read_text(encoding="utf-8").splitlines()
    except OSError:
        # A template without a README is listed by its name alone.
        return ""
    return next((line.strip() for line in lines if line.strip() and not line.startswith("#")), "")


def copy_template(template: Path, directory: Path) -> list[str]:
    """Copy a template's files into `directory` and name the experiment after it. Overwrites nothing."""
    from outlast.spec.runs import default_name

    names = [path.relative_to(template) for path in sorted(template.rglob("*")) if _belongs(path, template)]
    if directory.is_symlink() and not directory.exists():
        raise BadInput(f"{directory} is a link that leads nowhere; remove it or choose another directory")
    if directory.exists() and not directory.is_dir():
        raise BadInput(f"{directory} exists and is not a directory; choose another one")
    there = [str(name) for name in names if os.path.lexists(directory / name)]
    if there:
        raise BadInput(_describe_conflict(directory, there))
    try:
        for name in names:
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            raw = (template / name).read_bytes()
            if str(name) == PARAMS:
                renamed = f"name: {default_name(directory.resolve().name)}"
                raw = re.sub(r"(?m)^name:\s*\S+", renamed, raw.decode(), count=1).encode()
            # "x": a file that came to be in between is not overwritten either.
            with target.open("xb") as file:
                file.write(raw)
            target.chmod(target.stat().st_mode | ((template / name).stat().st_mode & 0o111))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise NotWritable(
            f"{directory} cannot be written: {reason}; choose a directory of your own"
        ) from error
    return [str(name) for name in names]


def write_params(directory: Path, command: str) -> Path:
    """Write a `params.yaml` that runs `command` with the code in the directory. Overwrites nothing."""
    from outlast.spec.own_code import params_for
    from outlast.spec.runs import default_name

    if not directory.is_dir():
        raise BadInput(f"{directory} is not a directory; --command is for a directory that has your code")
    path = directory / PARAMS
    text = params_for(default_name(directory.resolve().name), command)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadInput(_describe_conflict(directory, [PARAMS])) from None
    except OSError as error:
        raise NotWritable(f"{path} cannot be written: {error.strerror or type(error).__name__}") from error
    return path


def _describe_conflict(directory: Path, names: Sequence[str]) -> str:
    """Return why nothing is written over these files, and what to type instead."""
    from outlast.spec.own_code import init_command

    found = f"{directory} already contains {', '.join(names)}; nothing was written"
    if PARAMS in names:
        return f"{found}. `outlast check {shlex.quote(str(directory))}` says whether it can be run"
    return f"{found}. For your own code there: {init_command(directory)}"


def _belongs(path: Path, template: Path) -> bool:
    """Return True if a file belongs to the template and was not left behind by running it in place."""
    from outlast.spec.code_files import JOURNAL, OWN_DIRECTORIES

    parts = path.relative_to(template).parts
    left_behind = parts[0] in OWN_DIRECTORIES or parts[0].startswith(JOURNAL)
    return path.is_file() and not left_behind and "__pycache__" not in parts and not parts[-1].startswith(".")
