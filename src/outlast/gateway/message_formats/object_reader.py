"""Reading a JSON object key by key, with exact types: `true` is no number, and 6.0 no whole number."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from outlast.gateway.message_formats.mistake_list import MistakeList, Path
from outlast.gateway.message_formats.strict_json import UNUSABLE

_SITE_WORDS = """
account apptainer args argv binary checkpoints cluster cmd code command commands condor constraint container
cwd data directives docker entrypoint env environ environment exec executable extra extraargs htcondor image
images job jobscript limits modules mount mounts native nativespecification nodelist options output outputs
params partition path prolog python qos qsub queue requirements reservation run sbatch scheduler
scheduleroptions script setup sge shell singularity slurm slurmoptions srun submit sweep user variables volume
volumes walltime workdir workingdirectory wrap
"""
#: What a template decides, or the site; never a request. Compared without case, spaces, "-", "_" and ".".
_NOT_FROM_REQUESTS = frozenset(_SITE_WORDS.split())


def kind_of(value: object) -> str:
    """Return what a JSON value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return "a whole number"
    if isinstance(value, float):
        return "a number with a fraction or an exponent"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "an object"


class ObjectReader:
    """The object at `path`. Every method returns None for a key that is missing or has a mistake."""

    def __init__(self, value: Any, path: Path, mistakes: MistakeList) -> None:
        self.path = path
        self.mistakes = mistakes
        self.values: dict[str, Any] = value if isinstance(value, dict) else {}
        #: False if there is no object: then nothing is reported as missing.
        self.exists = isinstance(value, dict)
        self._known: set[str] = set()
        if not self.exists and value is not UNUSABLE:
            mistakes.add(path, f"an object is expected, not {kind_of(value)}")

    def at(self, key: str) -> Path:
        return (*self.path, key)

    def add(self, key: str, text: str) -> None:
        """Note a mistake in the value of a key."""
        self.mistakes.add(self.at(key), text)

    def value(self, key: str, required: bool = False) -> Any:
        """Return the value; UNUSABLE if it is missing or has a mistake that was noted."""
        self._known.add(key)
        if key not in self.values and required and self.exists:
            self.add(key, "it is missing")
        return self.values.get(key, UNUSABLE)

    def text(self, key: str, required: bool = False, longest: int = 1000) -> str | None:
        """Return a text of at least one and at most `longest` characters."""
        value = self.value(key, required)
        return check_text(value, self.at(key), self.mistakes, longest)

    def whole(self, key: str, at_least: int, at_most: int) -> int | None:
        """Return a whole number within its bounds."""
        return check_whole(self.value(key), self.at(key), self.mistakes, at_least, at_most)

    def object(self, key: str, required: bool = False) -> ObjectReader:
        """Return a reader of the object; of an empty one if it is missing or something else."""
        value = self.value(key, required)
        return ObjectReader(value, self.at(key), self.mistakes)

    def refuse_others(self, accepted: Collection[str] = ()) -> None:
        """Note every key that was not read and is not among `accepted`."""
        known = sorted({*self._known, *accepted})
        for key in self.values:
            if key in self._known or key in accepted:
                continue
            if _bare(key) in _NOT_FROM_REQUESTS:
                self.add(key, "not accepted from requests: the template decides it")
            else:
                self.add(key, f"unknown key; known are {', '.join(known)}")


def check_text(value: Any, path: Path, mistakes: MistakeList, longest: int = 1000) -> str | None:
    """Return the value if it is a text of 1 to `longest` characters; else note why not."""
    if value is UNUSABLE:
        return None
    if not isinstance(value, str):
        mistakes.add(path, f"text is expected, not {kind_of(value)}")
    elif not value:
        mistakes.add(path, "it is empty")
    elif len(value) > longest:
        mistakes.add(path, f"it has {len(value):,} characters; at most {longest:,} are accepted")
    else:
        return value
    return None


def check_whole(value: Any, path: Path, mistakes: MistakeList, at_least: int, at_most: int) -> int | None:
    """Return the value if it is an integer from `at_least` to `at_most`; else note why not."""
    if value is UNUSABLE:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        mistakes.add(path, f"a whole number is expected, not {kind_of(value)}")
    elif not at_least <= value <= at_most:
        mistakes.add(path, f"it must be from {at_least:,} to {at_most:,}")
    else:
        return value
    return None


def _bare(key: str) -> str:
    return key.lower().translate({ord(character): None for character in "-_ ."})
