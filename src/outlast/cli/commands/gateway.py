"""`outlast gateway`: requests from a message broker become runs, and each gets one answer."""

from __future__ import annotations

import click

from outlast.cli.lazy_group import LazyGroup

_COMMANDS = {
    "init": ("gateway_commands.init", "Create a gateway with a template that runs as it is."),
    "check": ("gateway_commands.check", "Check everything that the gateway needs. Takes no messages."),
    "up": ("gateway_commands.up", "Take requests, supervise their runs and send answers."),
    "tick": ("gateway_commands.tick", "Take, supervise and send once (for cron)."),
    "status": ("gateway_commands.status", "Show whether it is connected, and what waits."),
    "requests": ("gateway_commands.requests", "List requests."),
    "explain": ("gateway_commands.explain", "Show everything about one request."),
    "cancel": ("gateway_commands.cancel", "Cancel requests that have not ended."),
    "retry": ("gateway_commands.retry", "Run a failed request or send an undelivered answer again."),
    "replay": ("gateway_commands.replay", "Send a stored answer again."),
    "quarantine": (
        "gateway_commands.quarantine",
        "List messages that were put aside; release or discard them.",
    ),
    "drain": ("gateway_commands.drain", "Take no more requests, and stop when the last is answered."),
    "send": ("gateway_commands.send", "Send a request, and wait for its answer."),
    "demo": ("gateway_commands.demo", "Watch five requests get five answers in spite of kills."),
}


class _GatewayGroup(LazyGroup):
    table = _COMMANDS


@click.group(cls=_GatewayGroup)
def command() -> None:
    """Serve training requests from a message broker: every request gets one answer.

    Start with `outlast gateway init DIR`, then `outlast gateway check DIR` and `outlast gateway up DIR`.
    """
