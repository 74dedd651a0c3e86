"""`--help` of every command ends with an example that the command takes, and shells complete commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from convsmith.cli.main import main


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words that call each command of a group, and the group itself."""
    yield words
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name)


@pytest.mark.parametrize("words", list(commands(main)), ids=" ".join)
def test_help_ends_with_an_example(words: tuple[str, ...]) -> None:
    page = CliRunner().invoke(main, [*words, "--help"], prog_name="convsmith").output
    start = page.rindex("Example: ") + len("Example: ")
    program, *example = shlex.split(page[start:])
    assert program == "convsmith" and tuple(example[: len(words)]) == words
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group):
        name, *example = example
        found = command.get_command(context, name)
        assert found is not None
        command = found
    command.make_context(name, example)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete(shell: str) -> None:
    code = "from convsmith.cli.main import main; main(prog_name='convsmith')"
    asked = {"COMP_WORDS": "convsmith ex", "COMP_CWORD": "1" if shell != "fish" else "ex"}
    environment = {**os.environ, **asked, "_CONVSMITH_COMPLETE": f"{shell}_complete"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "explain" in found.stdout and "bench" not in found.stdout


def test_the_list_of_commands_imports_none() -> None:
    code = (
        "import sys; from convsmith.cli.main import main; main(['--help'], standalone_mode=False); "
        "sys.exit('numpy' in sys.modules or 'convsmith.cli.bench' in sys.modules)"
    )
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name in main.list_commands(click.Context(main)):
        assert f"\n  {name} " in listed
