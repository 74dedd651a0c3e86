"""click 8.1 in the tests: a command's streams are apart, and together as `output`, as with later versions."""

from __future__ import annotations

from functools import partialmethod
from inspect import signature

from click.testing import CliRunner, Result


def separate_streams() -> None:
    """Make runners of commands capture as those of click 8.2 do."""
    if "mix_stderr" in signature(CliRunner).parameters:
        CliRunner.__init__ = partialmethod(CliRunner.__init__, mix_stderr=False)  # type: ignore[method-assign]
        Result.output = property(lambda result: result.stdout + result.stderr)  # type: ignore[method-assign]
