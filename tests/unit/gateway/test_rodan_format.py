"""Requests of Rodan's jobs, as their source code sends them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outlast.gateway.message_formats.read import read_message
from outlast.gateway.requests import (
    Delivery,
    FailureCode,
    InputReference,
    Properties,
    RequestRefused,
    TrainingRequest,
)
from outlast.gateway.settings import QueueSettings

QUEUE = QueueSettings("hpc-jobs", "rodan", "layers", reply_to=("hpc-results",))
PATH = "/uploads/projects/0f0e/resources/0a0b/original_file"
SETTINGS: dict[str, Any] = {
    "Maximum number of training epochs": 20,
    "Maximum number of samples per label": 500,
    "Patch height": 64,
    "Patch width": 128,
    "Maximum time (D-HH:MM)": "1-12:30",
    "Maximum memory (MB)": 2048,
    "CPUs": 2,
    "Slurm Notification Email": "a.person+x@mail.example.org",
}


def read(names: list[str], settings: dict[str, Any]) -> TrainingRequest:
    body = json.dumps({"inputs": dict.fromkeys(names, PATH), "settings": settings}).encode()
    properties = Properties(correlation_id=b"a", reply_to=b"hpc-results")
    request = read_message(Delivery("hpc-jobs", body, properties), QUEUE, 0.0)
    assert isinstance(request, TrainingRequest)
    return request


def test_a_request_becomes_one_for_the_template_of_its_queue() -> None:
    layers = [f"rgba PNG - Layer {number}" for number in range(10)]
    request = read(["Image", "Background", "Selected Regions", *layers], SETTINGS)
    names = ["image", "background", "selected_regions", *(f"layer_{number}" for number in range(10))]
    assert request == TrainingRequest(
        "layers",
        {"epochs": 20, "samples": 500, "patch_height": 64, "patch_width": 128},
        dict.fromkeys(names, InputReference(PATH)),
        {"cpus": 2, "memory": 2048 * 10**6, "time": 131400.0},
    )


def test_settings_that_are_missing_have_rodans_defaults() -> None:
    request = read(["Image", "rgba PNG - Layer 0"], {})
    assert request.parameters == {"epochs": 15, "samples": 10000, "patch_height": 256, "patch_width": 256}
    assert request.resources == {"cpus": 6, "memory": 257000 * 10**6, "time": 21600.0}


def test_the_names_of_inputs_before_october_2020_are_understood() -> None:
    names = ["Image", "Background", "Music Layer", "Staff Layer", "Text", "Selected Regions"]
    assert list(read(names, SETTINGS).inputs) == [
        "image",
        "background",
        "music_layer",
        "staff_layer",
        "text",
        "selected_regions",
    ]


def test_no_scheduler_gets_the_email() -> None:
    request = read(["Image", "rgba PNG - Layer 0"], SETTINGS)
    assert "example.org" not in repr(request)
    assert read(["rgba PNG - Layer 0"], {"Slurm Notification Email": ""})


def test_all_mistakes_are_listed_at_once() -> None:
    with pytest.raises(RequestRefused) as caught:
        read(["Picture"], {"CPUs": 0, "Patch height": 63, "Slurm Notification Email": "x", "qos": "high"})
    assert caught.value.failure.code is FailureCode.INVALID_REQUEST
    assert [mistake.partition(": ")[0] for mistake in caught.value.failure.mistakes] == [
        "inputs.Picture",
        "inputs",
        'settings["Patch height"]',
        "settings.CPUs",
        'settings["Slurm Notification Email"]',
        "settings.qos",
    ]
