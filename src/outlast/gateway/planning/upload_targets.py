"""Where a request wants its results to be put: URLs on hosts that the template lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from outlast.gateway.settings import ApplicationSettings, Template
from outlast.gateway.web_application.upload_places import is_upload_place, needs_token
from outlast.node.staging.http.host_rules import is_private_name
from outlast.node.staging.http.url import BadUrl, Url
from outlast.spec.mistakes import did_you_mean, shorten


def upload_mistakes(
    template: Template, uploads: Mapping[str, str], application: ApplicationSettings
) -> Iterator[str]:
    """Yield each mistake as `uploads.NAME: text`. URLs may have signatures, so none is quoted."""
    for name, text in uploads.items():
        shown = shorten(
            "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in name), 40
        )
        if template.answer and name not in template.answer:
            hint = did_you_mean(name, template.answer) or f"known: {', '.join(template.answer)}"
            yield f"uploads.{shown}: is not an output of the template; {hint}"
        wrong = _url_mistake(template, text, application)
        if wrong:
            yield f"uploads.{shown}: {wrong}"


def _url_mistake(template: Template, text: str, application: ApplicationSettings) -> str:
    if not isinstance(text, str) or "#" in text or "\\" in text:
        return "is not an https URL"
    try:
        url = Url.parse(text)
    except BadUrl:
        # Its message may be about the cluster's profile.
        return "is not an https URL, or contains a user or password"
    if url.authority not in template.upload_hosts:
        return f"{url.authority} is not one of the hosts to which results may be put"
    if needs_token(url, application) and not is_upload_place(url, template, application):
        return f"is not below the path on {url.authority} to which this site puts results"
    # Within this machine nobody can read what is sent.
    return "" if url.is_tls or is_private_name(url.host) else "must be an https URL"
