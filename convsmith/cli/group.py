"""Groups of commands, whose messages name the command, the option or the value that a wrong word probably means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import click

from convsmith.diag.choices import choices, suggestion
from convsmith.diag.forking import import_lock

__all__ = ["CommandGroup", "named_options"]


class CommandGroup(click.Group):
    """A group whose message about a wrong command lists its commands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first of `args` names, as click does. click.UsageError if there is none."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            raise click.UsageError(f"No such command {name!r}; legal are {choices(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)


@contextmanager
def named_options() -> Iterator[None]:
    """Let click's error about an option that a command lacks name the option, or its value, that is probably meant."""
    try:
        yield
    except click.NoSuchOption as error:
        command = error.ctx.command if error.ctx is not None else None
        spellings = _spellings(command) if command is not None else {}
        meant = suggestion(error.option_name, spellings, spellings)
        raise click.UsageError(f"No such option {error.option_name!r}{meant}", error.ctx) from None


def _spellings(command: click.Command) -> Mapping[str, str]:
    """Return the options of a command, and each value of its options under the name of an option."""
    options = [x for parameter in command.params if isinstance(parameter, click.Option) for x in parameter.opts]
    values = _values()
    found = {f"--{value}": f"{option}={value}" for option in options for value in values.get(option, ())}
    return {**{option: option for option in options}, **found}


def _values() -> Mapping[str, Iterable[str]]:
    """Return the values of the options whose values are names. Imports the modules that know them."""
    with import_lock:
        from convsmith.machine.registry import device_targets, target_names
        from convsmith.measure.peers import PEERS
        from convsmith.problem.eltwise import ALGORITHMS
        from convsmith.problem.problem import ACCURACIES, DIRECTIONS
        from convsmith.problem.suites import SUITES
        from convsmith.problem.types import TYPES

    return {
        "--attr-post-ops": ALGORITHMS, "--dt": TYPES, "--dir": DIRECTIONS, "--accuracy": ACCURACIES, "--vs": PEERS,
        "--target": (*target_names(), *(t.name for t in device_targets())), "--suite": SUITES,
    }  # fmt: skip
