"""`outlast gateway`: requests from a message broker become runs, and each gets one answer."""

from __future__ import annotations

import click

from outlast.cli.lazy_group import LazyGroup

_COMMANDS = {
    "init": ("gateway_init", "Create a gateway with a template that runs as it is."),
    "check": ("gateway_check", "Check everything that the gateway needs. Takes no messages."),
    "up": ("gateway_up", "Take requests, supervise their runs and send answers."),
    "tick": ("gateway_tick", "Take, supervise and send once (for cron)."),
    "status": ("gateway_status", "Show whether it is connected, and what waits."),
    "requests": ("gateway_requests", "List requests."),
    "explain": ("gateway_explain", "Show everything about one request."),
    "cancel": ("gateway_cancel", "Cancel requests that have not ended."),
    "retry": ("gateway_retry", "Run a failed request again, or send an undelivered answer again."),
    "replay": ("gateway_replay", "Send a stored answer again."),
    "quarantine": ("gateway_quarantine", "List messages that were put aside; release or discard them."),
    "drain": ("gateway_drain", "Take no more requests, and stop when the last is answered."),
    "send": ("gateway_send", "Send a request, and wait for its answer."),
}


class _GatewayGroup(LazyGroup):
    table = _COMMANDS


@click.group(cls=_GatewayGroup)
def command() -> None:
    """Serve training requests from a message broker: every request gets one answer.

    Start with `outlast gateway init DIR`, then `outlast gateway check DIR` and `outlast gateway up DIR`.
    """
