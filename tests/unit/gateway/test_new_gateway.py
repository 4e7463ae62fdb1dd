"""`outlast gateway init`: what it writes is valid, except for the passwords, and readable by nobody else."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from outlast.errors import BadInput, NotWritable
from outlast.gateway.configuration.new_gateway import init_gateway
from outlast.gateway.configuration.settings_file import read_settings
from outlast.gateway.configuration.template_file import read_params, read_templates
from outlast.gateway.gateway_directory import GatewayDirectory
from outlast.gateway.message_formats.rodan import MOST_LAYERS, PARAMETERS
from outlast.gateway.planning.run_plan import plan_run
from outlast.gateway.requests import InputReference, TrainingRequest
from outlast.spec import BadSpec, read

#: The lines of gateway.yaml that Rodan needs.
_RODAN = r"  # - (name: hpc-jobs|pages-rodan)|  #   \w|# application|#   (url|login|cred|scheme)"


@pytest.fixture
def lab(tmp_path: Path) -> GatewayDirectory:
    init_gateway(tmp_path / "lab")
    return GatewayDirectory(tmp_path / "lab")


def write_passwords(lab: GatewayDirectory) -> None:
    for path in lab.credentials.iterdir():
        path.write_text(re.sub(r"(?m):$", ": x", path.read_text()))


def enable_rodan(lab: GatewayDirectory) -> None:
    """Remove the # as the comments say."""
    text = lab.settings.read_text()
    lines = [
        re.sub(r"^(\s*)# ", r"\1", line)
        if re.match(
            r"  # - (name: hpc-jobs|pages-rodan)|  #   \w|# application|#   (url|login|cred|scheme)", line
        )
        else line
        for line in text.splitlines()
    ]
    lab.settings.write_text("\n".join(lines) + "\n")


def test_all_files_are_listed_and_nobody_else_can_read_them(lab: GatewayDirectory, tmp_path: Path) -> None:
    names = init_gateway(tmp_path / "other")
    there = [path for path in (tmp_path / "other").rglob("*") if path.is_file()]
    assert sorted(names) == sorted(str(path.relative_to(tmp_path / "other")) for path in there)
    assert stat.S_IMODE(lab.root.stat().st_mode) == 0o700
    for private in (lab.credentials, lab.tokens):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
    for path in lab.credentials.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_only_the_passwords_are_missing(lab: GatewayDirectory) -> None:
    with pytest.raises(BadSpec) as caught:
        read_settings(lab)
    (mistake,) = caught.value.mistakes
    assert "has no user and no password" in str(mistake)
    write_passwords(lab)
    settings = read_settings(lab)
    assert list(read_templates(lab, settings)) == ["pages"]


def test_the_template_can_be_started_by_hand(lab: GatewayDirectory) -> None:
    parsed = read(lab.template("pages"))
    assert parsed.runs[0].params["epochs"] == "15"
    assert [item.name for item in parsed.spec.data] == ["book.zip"]


def test_rodan_needs_only_the_comments_to_be_removed(lab: GatewayDirectory) -> None:
    write_passwords(lab)
    enable_rodan(lab)
    settings = read_settings(lab)
    template = read_templates(lab, settings)["pages-rodan"]
    assert [queue.dialect for queue in settings.queues] == ["outlast", "rodan"]
    assert set(template.parameters) == {setting.name for setting in PARAMETERS.values()}
    for setting in PARAMETERS.values():
        parameter = template.parameters[setting.name]
        assert (parameter.at_least, parameter.default) == (setting.at_least, setting.default)
    numbered = [f"layer_{number}" for number in range(MOST_LAYERS)]
    assert list(template.inputs) == ["image", "background", "selected_regions", *numbered]

    path = "/uploads/projects/ab/resources/cd/original_file"
    names = ["image", "background", "selected_regions", "layer_0", "layer_1"]
    request = TrainingRequest(
        "pages-rodan",
        inputs={name: InputReference(path) for name in names},
        resources={"cpus": 6, "memory": 257_000_000_000, "time": 6 * 3600.0},
    )
    spec, plan = plan_run(
        template,
        request,
        settings,
        read_params(template),
        user="",
        number=1,
        now=0.0,
        token_file=None,
    )
    assert plan.name == "pages-rodan-000001"
    assert [(item.to, item.name) for item in spec.data] == [
        ("page", "Image.png"),
        ("page", "rgba PNG - Background.png"),
        ("page", "rgba PNG - Selected regions.png"),
        ("page", "rgba PNG - Layer 0.png"),
        ("page", "rgba PNG - Layer 1.png"),
    ]
    assert {item.urls for item in spec.data} == {("https://app.example.org" + path,)}


def test_service_and_crontab_name_the_gateway_and_the_program(lab: GatewayDirectory) -> None:
    for name in ("outlast-gateway.service", "crontab"):
        text = (lab.root / name).read_text()
        assert str(lab.root) in text and "DIRECTORY" not in text
        assert re.search(r"/\S*outlast gateway (up|tick) /", text) or "-m outlast gateway" in text


@pytest.mark.parametrize("kind", ["file", "full", "link"])
def test_nothing_that_exists_is_touched(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "lab"
    if kind == "file":
        place.write_text("mine")
    elif kind == "full":
        place.mkdir()
        (place / "mine").write_text("mine")
    else:
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to("elsewhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match="is not an empty directory"):
        init_gateway(place)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir(mode=0o755)
    assert init_gateway(tmp_path / "lab")
    assert stat.S_IMODE((tmp_path / "lab").stat().st_mode) == 0o700


def test_a_place_that_cannot_be_written_is_an_error_for_people(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((NotWritable, BadInput), match="gateway"):
        init_gateway(tmp_path / "file" / "lab")
