"""`outlast init`: create an experiment from a template that runs as it is."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from outlast.errors import BadInput
from outlast.templates import DEFAULT, copy_template, describe, templates


@click.command(name="init", short_help="Create an experiment that runs as it is.")
@click.argument("name", metavar="DIR", required=False, type=click.Path())
@click.option("--example", default=DEFAULT, show_default=True, metavar="NAME", help="Template to copy.")
@click.option("--command", "own", metavar="COMMAND", help="Write params.yaml alone, for your code in DIR.")
@click.option("--list", "list_them", is_flag=True, help="List the templates and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print JSON.")
def command(name: str | None, example: str, own: str | None, list_them: bool, as_json: bool) -> None:
    """Create an experiment in DIR: a commented params.yaml and a training script, ready to run.

    With --command "python train.py", write only a params.yaml that runs the code that is in DIR.
    """
    known = templates()
    if list_them:
        _print_templates(known, as_json=as_json)
        return
    if as_json:
        raise BadInput("--json works only with --list; type: outlast init --list --json")
    if name is None:
        raise BadInput("no directory given; type for example: outlast init my-experiment")
    if not name.strip():
        # Path("") would be the current directory; an empty name is most likely an unset shell variable.
        raise BadInput("the name of the directory is empty; type for example: outlast init my-experiment")
    directory = Path(name)
    if own is not None:
        _write_params(directory, own)
        return
    if example not in known:
        from outlast.spec.mistakes import did_you_mean

        hint = did_you_mean(example, known)
        hint = f"; {hint}" if hint else ""
        raise BadInput(f'there is no example "{example}"{hint} (known: {", ".join(known)})')
    copied = copy_template(known[example], directory)
    click.echo(f"created {directory}: {', '.join(copied)}")
    _print_next(directory)


def _write_params(directory: Path, own: str) -> None:
    from outlast.cli.commands.check import validate
    from outlast.templates import write_params

    if not own.strip() or not own.isprintable():
        raise BadInput('--command needs the command that trains, such as --command "python train.py"')
    click.echo(f"created {write_params(directory, own.strip())}")
    _, mistakes = validate(directory)
    for mistake in mistakes:
        click.echo(str(mistake), err=True)
    _print_next(directory)


def _print_next(directory: Path) -> None:
    click.echo("Next:")
    if directory.resolve() != Path.cwd():
        click.echo(f"  cd {shlex.quote(str(directory))}")
    click.echo("  outlast check      # lists errors, submits nothing")
    click.echo("  outlast run        # submits it and supervises it until it has finished")


def _print_templates(known: Mapping[str, Path], *, as_json: bool) -> None:
    described = {name: describe(path) for name, path in known.items()}
    if as_json:
        import json

        entries = [
            {"name": name, "description": text} if text else {"name": name}
            for name, text in described.items()
        ]
        click.echo(json.dumps(entries, indent=2))
        return
    from outlast.cli.common import wrap_line

    for name, text in described.items():
        click.echo(wrap_line(f"{name:<10} {text}".rstrip(), 11))
