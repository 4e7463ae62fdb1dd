"""The requests of Rodan's jobs, as its "fast trainer" sends them.

`{"inputs": {name: path}, "settings": {name: value}}` becomes a request for the template of its queue:

| in the message | in the request |
| --- | --- |
| `Image`, `Background`, `Selected Regions` | inputs `image`, `background`, `selected_regions` |
| `rgba PNG - Layer 0` … `9` | inputs `layer_0` … `layer_9`, contiguous, at least `layer_0` |
| `Music Layer`, `Staff Layer`, `Text` | inputs `music_layer`, `staff_layer`, `text` |
| `Maximum number of training epochs`, `… samples per label` | parameters `epochs`, `samples` |
| `Patch height`, `Patch width` | parameters `patch_height`, `patch_width` |
| `CPUs` | resource `cpus` |
| `Maximum memory (MB)` | resource `memory`, in units of 10^6 bytes, as everywhere in Outlast |
| `Maximum time (D-HH:MM)` | resource `time` |
| `Slurm Notification Email` | nothing: it is checked, and no scheduler gets it |

`Music Layer` and its like were sent until October 2020, instead of numbered layers. A setting that is
missing has Rodan's default. Which of the inputs are required is the template's to say.
Inputs are absolute paths on the application's host, which the template's application names: anything else is
refused as `input_refused`, since only a stranger would send it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from outlast.gateway.message_formats.mistake_list import MistakeList, Path
from outlast.gateway.message_formats.object_reader import ObjectReader, check_text
from outlast.gateway.message_formats.strict_json import UNUSABLE
from outlast.gateway.requests import FailureCode, InputReference, TrainingRequest
from outlast.units import LONGEST

LAYER = "rgba PNG - Layer "
MOST_LAYERS = 10
COMMON_INPUTS: Mapping[str, str] = {
    "Image": "image",
    "Background": "background",
    "Selected Regions": "selected_regions",
}
#: The layers of requests before October 2020.
OLD_LAYERS: Mapping[str, str] = {"Music Layer": "music_layer", "Staff Layer": "staff_layer", "Text": "text"}

TIME = "Maximum time (D-HH:MM)"
EMAIL = "Slurm Notification Email"
LONGEST_PATH = 2000
MOST = 10**9

_LAYER_NUMBER = re.compile(r"0|[1-9]\d{0,3}", re.ASCII)
_TIME = re.compile(r"(\d{1,4})-(\d{1,2}):(\d{2})", re.ASCII)
_EMAIL = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+", re.ASCII
)
#: Characters of paths that a server or a library might take for something else.
_UNSAFE = re.compile(r"[\\?#\s]|%(?:2e|2f|5c|00)", re.IGNORECASE)


class Setting(NamedTuple):
    """A whole number among the settings: what it becomes, its least value and Rodan's default."""

    name: str
    at_least: int
    default: int


PARAMETERS: Mapping[str, Setting] = {
    "Maximum number of training epochs": Setting("epochs", 1, 15),
    "Maximum number of samples per label": Setting("samples", 100, 10_000),
    "Patch height": Setting("patch_height", 64, 256),
    "Patch width": Setting("patch_width", 64, 256),
}
CPUS = "CPUs"
MEMORY = "Maximum memory (MB)"
RESOURCES: Mapping[str, Setting] = {CPUS: Setting("cpus", 1, 6), MEMORY: Setting("memory", 1024, 257_000)}
DEFAULT_TIME = 6 * 3600.0


def read_rodan(value: Any, template: str, mistakes: MistakeList) -> TrainingRequest | None:
    """Return the request in a JSON value; None if `mistakes` has got some."""
    if value is UNUSABLE:
        return None
    reader = ObjectReader(value, (), mistakes)
    inputs = reader.object("inputs", required=True)
    settings = reader.object("settings", required=True)
    reader.refuse_others()
    _check_names(inputs)
    request = TrainingRequest(
        template=template,
        parameters={setting.name: _number(settings, key, setting) for key, setting in PARAMETERS.items()},
        inputs={
            _input_name(key): InputReference(_check_path(path, inputs.at(key), mistakes))
            for key, path in inputs.values.items()
        },
        resources=_resources(settings),
    )
    _check_email(settings)
    settings.refuse_others()
    return None if mistakes else request


def _input_name(key: str) -> str:
    if key.startswith(LAYER):
        return f"layer_{key.removeprefix(LAYER)}"
    return COMMON_INPUTS.get(key) or OLD_LAYERS.get(key) or key


def _check_names(inputs: ObjectReader) -> None:
    """Note unknown names, and layers that are missing, too many, or of both kinds."""
    if not inputs.exists:
        return
    layers = [key.removeprefix(LAYER) for key in inputs.values if key.startswith(LAYER)]
    old = [key for key in inputs.values if key in OLD_LAYERS]
    inputs.refuse_others((*COMMON_INPUTS, *OLD_LAYERS, *(LAYER + layer for layer in layers)))
    numbers = {int(layer) for layer in layers if _LAYER_NUMBER.fullmatch(layer)}
    if len(numbers) < len(layers):
        inputs.mistakes.add(inputs.path, f'layers are called "{LAYER}0" to "{LAYER}{MOST_LAYERS - 1}"')
    elif layers and old:
        inputs.mistakes.add(inputs.path, f'it has numbered layers and also "{old[0]}"')
    elif not layers and not old:
        inputs.mistakes.add(inputs.path, f'it has no layer; at least "{LAYER}0" is expected')
    elif len(layers) > MOST_LAYERS:
        inputs.mistakes.add(inputs.path, f"it has {len(layers)} layers; at most {MOST_LAYERS} are accepted")
    elif numbers and numbers != set(range(len(numbers))):
        missing = min(set(range(MOST_LAYERS + 1)) - numbers)
        inputs.mistakes.add(
            inputs.path, f'"{LAYER}{missing}" is missing; layers are numbered from 0 without gaps'
        )


def _check_path(value: Any, path: Path, mistakes: MistakeList) -> str:
    text = check_text(value, path, mistakes, LONGEST_PATH)
    if text is None:
        return ""
    parts = text.split("/")
    is_plain = text.startswith("/") and all(part not in ("", ".", "..") for part in parts[1:])
    if not is_plain or _UNSAFE.search(text):
        message = "an absolute path on the application's host is expected, in its shortest form"
        mistakes.add(path, message, FailureCode.INPUT_REFUSED)
    return text


def _number(settings: ObjectReader, key: str, setting: Setting) -> int:
    number = settings.whole(key, setting.at_least, MOST)
    return setting.default if number is None else number


def _resources(settings: ObjectReader) -> dict[str, float]:
    found: dict[str, float] = {
        setting.name: _number(settings, key, setting) for key, setting in RESOURCES.items()
    }
    found["memory"] *= 10**6
    found["time"] = _time(settings)
    return found


def _time(settings: ObjectReader) -> float:
    text = settings.text(TIME, longest=100)
    if text is None:
        return DEFAULT_TIME
    match = _TIME.fullmatch(text)
    if match is None or int(match[2]) > 23 or int(match[3]) > 59:
        settings.add(TIME, "days, hours and minutes are expected, such as 0-06:00")
        return DEFAULT_TIME
    seconds = int(match[1]) * 86400.0 + int(match[2]) * 3600 + int(match[3]) * 60
    if seconds <= 0:
        settings.add(TIME, "it must be more than zero")
    if seconds > LONGEST:
        settings.mistakes.add(settings.at(TIME), "it is longer than ten years", FailureCode.OVER_CEILING)
    return seconds


def _check_email(settings: ObjectReader) -> None:
    value = settings.value(EMAIL)
    if value == "":
        return
    text = check_text(value, settings.at(EMAIL), settings.mistakes, 254)
    if text is not None and not _EMAIL.fullmatch(text):
        settings.add(EMAIL, "an e-mail address such as name@example.org is expected, or an empty text")
