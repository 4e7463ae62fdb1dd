"""Makes the run of a request from its template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from outlast.domain.model import RunPlan, Spec
from outlast.gateway.planning.run_plan import plan_run
from outlast.gateway.requests import TrainingRequest
from outlast.gateway.settings import GatewaySettings, Template
from outlast.gateway.web_application.application import Application
from outlast.spec import Parsed


class Planner:
    """Makes the run of a request: its spec and its plan. Raises RequestRefused."""

    def __init__(
        self, settings: GatewaySettings, parsed: Mapping[str, Parsed], application: Application
    ) -> None:
        self._settings = settings
        self._parsed = parsed
        self._application = application

    def __call__(
        self, template: Template, request: TrainingRequest, user: str, number: int, now: float
    ) -> tuple[Spec, RunPlan]:
        token: Path | None = self._application.path if self._application.has_login else None
        spec, plan = plan_run(
            template,
            request,
            self._settings,
            self._parsed[template.name],
            user=user,
            number=number,
            now=now,
            token_file=token,
        )
        # Runs of a gateway belong to different people: the failures of some do not stop the others.
        return replace(spec, limits=replace(spec.limits, hold_back=False)), plan
