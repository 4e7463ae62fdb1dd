"""The defaults of a gateway's template, so that `outlast run` starts it by hand."""

from __future__ import annotations

import os
from pathlib import Path

from outlast.spec.command import placeholders
from outlast.spec.document import Document, Mapping
from outlast.spec.mistakes import BadSpec
from outlast.spec.yamlfile import load

FILE = "template.yaml"
#: The values of a parameter of the type `yes-no`, as commands get them.
YES_NO = {"true": "yes", "false": "no"}


def template_defaults(directory: Path, commands: str) -> dict[str, str]:
    """Return the default of each parameter in `template.yaml`; empty if the commands have no placeholder.

    What is wrong in that file is reported where it is read for requests.
    """
    path = directory / FILE
    if not placeholders(commands) or not os.path.lexists(path):
        return {}
    try:
        document = load(path, FILE)
    except BadSpec:
        # Then the placeholders are reported as unknown.
        return {}
    declared = document.find(("parameters",))
    names = declared.entries if isinstance(declared, Mapping) else {}
    found = {name: _default(document, name) for name in names}
    return {name: text for name, text in found.items() if text is not None}


def _default(document: Document, name: str) -> str | None:
    text = document.text(("parameters", name, "default"))
    if text is not None and document.text(("parameters", name, "type")) == "yes-no":
        return YES_NO.get(text.lower(), text)
    return text
