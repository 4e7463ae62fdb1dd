"""From a request to a run: what a template allows of it, or everything that is wrong with it at once.

Nothing in a request becomes a part of a path, a host name to connect to, or a word of a command that the
template does not provide for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isnan
from pathlib import Path

from outlast.domain.model import Limits, Resources, RunPlan, Spec
from outlast.gateway.configuration.host_names import authority_of, port_of
from outlast.gateway.configuration.parameter_values import as_text, value_mistake
from outlast.gateway.planning.input_items import InputMistake, input_item, target_of
from outlast.gateway.planning.upload_targets import upload_mistakes
from outlast.gateway.requests import FailureCode, RequestFailure, RequestRefused, TrainingRequest, run_name
from outlast.gateway.settings import GatewaySettings, Template
from outlast.node.staging.item import DataItem
from outlast.spec import Parsed
from outlast.spec.mistakes import did_you_mean, shorten
from outlast.text import printable
from outlast.units import show_limit, show_size

#: The least that a request may ask for.
_LEAST: Mapping[str, int] = {"cpus": 1, "gpus": 0, "memory": 1, "disk": 1, "time": 1}
_WHOLE = ("cpus", "gpus", "memory", "disk")
#: What a run has from its first attempt on. It begins with little of the rest, and gets more if it needs it.
_NEVER_RAISED = ("cpus", "gpus")
_SHORTEST_TOTAL = 1.0
_MOST_MISTAKES = 100

#: The code of a failure with mistakes of several kinds is the first of these.
_ORDER = (FailureCode.INVALID_REQUEST, FailureCode.INPUT_REFUSED, FailureCode.OVER_CEILING)
_MESSAGES = {
    FailureCode.INVALID_REQUEST: "The request is not one that the template %s accepts: %s.",
    FailureCode.INPUT_REFUSED: "An input is not one that the template %s accepts: %s.",
    FailureCode.OVER_CEILING: "The request asks for more than the template %s allows: %s.",
}
_ADVICE = {
    FailureCode.INVALID_REQUEST: "Correct what is listed under mistakes, and send it again.",
    FailureCode.INPUT_REFUSED: "Send files from the hosts that this site lists, by https.",
    FailureCode.OVER_CEILING: "Ask for less: a run begins with little, and gets more only if it needs it.",
}

#: A code, and `path: text`.
_Mistake = tuple[FailureCode, str]


def plan_run(
    template: Template,
    request: TrainingRequest,
    settings: GatewaySettings,
    parsed: Parsed,
    *,
    user: str,
    number: int,
    now: float,
    token_file: Path | None,
) -> tuple[Spec, RunPlan]:
    """Return the spec and the run of a request. Raise RequestRefused with everything that is wrong with it.

    `parsed` is the template's params.yaml; `number` makes the run's name unique; `token_file` is the file in
    which jobs find the application's token, the same for all requests of the template.
    """
    if template.users and user not in template.users:
        raise RequestRefused(
            RequestFailure(
                FailureCode.FORBIDDEN,
                f"This user may not use the template {template.name}.",
                "Ask the site to add the user to the template.",
            )
        )
    if request.deadline is not None and request.deadline <= now:
        advice = "Send it again with a later deadline."
        raise RequestRefused(
            RequestFailure(FailureCode.EXPIRED, "The deadline of the request has passed.", advice)
        )
    values, mistakes = _values(template, request)
    items, more = _items(template, request, settings)
    mistakes += [*more, *_resource_mistakes(template, request)]
    mistakes += [
        (FailureCode.INVALID_REQUEST, text)
        for text in upload_mistakes(template, request.uploads, settings.application)
    ]
    if mistakes:
        raise RequestRefused(_failure(template, mistakes))
    spec = _spec(template, request, settings, parsed.spec, items, now, token_file)
    return spec, RunPlan(run_name(template.name, number), values)


def _failure(template: Template, mistakes: list[_Mistake]) -> RequestFailure:
    code = min((one for one, _ in mistakes), key=_ORDER.index)
    first = next(text for one, text in mistakes if one is code)
    others = len(mistakes) - 1
    summary = first + (f", and {others} more" if others else "")
    listed = tuple(text for _, text in mistakes[:_MOST_MISTAKES])
    return RequestFailure(code, _MESSAGES[code] % (template.name, summary), _ADVICE[code], listed)


def _values(template: Template, request: TrainingRequest) -> tuple[dict[str, str], list[_Mistake]]:
    """Return the text of every parameter, and the mistakes."""
    values: dict[str, str] = {}
    mistakes = list(_unknown("parameters", request.parameters, template.parameters))
    for name, parameter in template.parameters.items():
        value = request.parameters.get(name, parameter.default)
        wrong = "is missing" if value is None else value_mistake(parameter, value)
        if wrong:
            mistakes.append((FailureCode.INVALID_REQUEST, f"parameters.{name}: {wrong}"))
        else:
            values[name] = as_text(parameter, value)
    return values, mistakes


def _unknown(group: str, given: Mapping[str, object], known: Mapping[str, object]) -> Iterator[_Mistake]:
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"known: {', '.join(known) or 'none'}"
            text = f"{group}.{shorten(printable(name), 40)}: is not known to the template; {hint}"
            yield FailureCode.INVALID_REQUEST, text


def _items(
    template: Template, request: TrainingRequest, settings: GatewaySettings
) -> tuple[list[DataItem], list[_Mistake]]:
    """Return the data items of the inputs, and the mistakes."""
    items = []
    mistakes = list(_unknown("inputs", request.inputs, template.inputs))
    for name, rule in template.inputs.items():
        reference = request.inputs.get(name)
        if reference is None:
            if rule.required:
                mistakes.append((FailureCode.INVALID_REQUEST, f"inputs.{name}: is missing"))
            continue
        try:
            items.append(input_item(rule, reference, settings.application))
        except InputMistake as mistake:
            mistakes.append((mistake.code, f"inputs.{name}: {mistake}"))
    return items, mistakes


def _resource_mistakes(template: Template, request: TrainingRequest) -> Iterator[_Mistake]:
    yield from _unknown("resources", request.resources, _LEAST)
    for name, least in _LEAST.items():
        value = request.resources.get(name)
        if value is None:
            continue
        at, most = f"resources.{name}", getattr(template.ceilings, name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and not isnan(value)
        if not is_number or (name in _WHOLE and not isinstance(value, int)):
            yield FailureCode.INVALID_REQUEST, f"{at}: must be a {'whole ' * (name in _WHOLE)}number"
        elif value < least:
            yield FailureCode.INVALID_REQUEST, f"{at}: must be at least {least}"
        elif value > most:
            yield FailureCode.OVER_CEILING, f"{at}: can be at most {_amount(name, most)}"


def _amount(name: str, value: float) -> str:
    if name == "time":
        return show_limit(value)
    return show_size(round(value)) if name in ("memory", "disk") else f"{value:g}"


def _spec(
    template: Template,
    request: TrainingRequest,
    settings: GatewaySettings,
    spec: Spec,
    items: list[DataItem],
    now: float,
    token_file: Path | None,
) -> Spec:
    """Return the template's spec with the request's inputs, and with what it may use at most."""
    targets = {target_of(item) for item in items}
    own = [item for item in spec.data if target_of(item) not in targets]
    given = {name: value for name, value in request.resources.items() if value is not None}
    most = {name: given.get(name, getattr(template.ceilings, name)) for name in _LEAST}
    resources = {name: min(getattr(spec.resources, name), value) for name, value in most.items()}
    # Nothing shows that a run lacks CPUs, so no later attempt would get more.
    resources |= {name: given[name] for name in _NEVER_RAISED if name in given}
    parallel = template.quota.running if spec.parallel is None else min(spec.parallel, template.quota.running)
    return replace(
        spec,
        resources=Resources(**resources),
        parallel=parallel,
        data=(*own, *items),
        limits=_limits(template, request, spec.limits, most, now),
        profile={**spec.profile, **_token_site(settings, token_file, spec.profile)},
    )


def _limits(
    template: Template, request: TrainingRequest, limits: Limits, most: Mapping[str, float], now: float
) -> Limits:
    total = template.ceilings.total
    if request.deadline is not None:
        total = min(total, max(request.deadline - now, _SHORTEST_TOTAL))
    return replace(
        limits,
        total=total,
        memory=int(most["memory"]),
        disk=int(most["disk"]),
        time=most["time"],
        outage=template.ceilings.outage,
    )


def _token_site(
    settings: GatewaySettings, token_file: Path | None, profile: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the keys of the profile that send the application's token to the application, and nowhere else.

    They are in the profile of every request, since jobs get those of the newest one.
    """
    if token_file is None or not settings.application.url:
        return {}
    host = authority_of(settings.application.url)
    without_port = host.removesuffix(f":{port_of(settings.application.url)}")
    hosts = [f"{without_port}:{port_of(settings.application.url)}"]
    command: Mapping[str, object] = {"token_command": []} if profile.get("token_command") else {}
    return {**command, "token_file": str(token_file), "token_hosts": hosts}
