"""`convsmith`: the group of commands, and the handling of errors.

Exit status: 0 success, 1 a mismatch or a fault of convsmith, 2 an illegal request, 130 interrupted, 143 or 129 ended by
SIGTERM or SIGHUP. A reader that closes the output ends a command; the exit status then covers the rows printed so far.
A user never sees a traceback.
"""

from __future__ import annotations

import errno
import os
import select
import shlex
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from threading import current_thread, main_thread
from typing import Any, TextIO

import click

from convsmith import __version__
from convsmith.cli.group import CommandGroup, named_options
from convsmith.cli.output import STATUS, drop, error_line, exit_status
from convsmith.diag.errors import ConvsmithError, InternalError
from convsmith.diag.settings import VARIABLES
from convsmith.diag.warning import ConvsmithWarning

__all__ = ["main"]

_COMMANDS = {
    "bench": "Verify and time kernels.",
    "verify": "Run problems on random data, and compare with numpy.",
    "explain": "Explain a kernel: its bound, its plan, and what would be faster.",
    "show": "Print the IR, the LLVM text or the assembly of a kernel.",
    "machine": "Describe this machine and print its ceilings.",
    "cache": "Look at the cache of compiled kernels, or empty it.",
    "tune": "Search for the fastest config of each problem.",
    "db": "Look at the database of measurements, or move rows.",
    "export": "Write kernels for programs without Python.",
    "network": "Compile a whole ONNX model to one function.",
}
"""The commands and what the list of commands says of them; that needs no command's module, whose imports take long."""
_EPILOG = "\n\n".join(
    ("Environment:", *(f"{v.env}: {v.doc} Legal: {v.legal}." for v in VARIABLES), "Example: convsmith bench resnet50")
)


class _Group(CommandGroup):
    """Imports a command's module when the command is called, and turns errors into one message and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"convsmith.cli.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def main(self, *args: Any, **extra: Any) -> Any:
        _open_streams()
        return super().main(*args, **extra)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            with _while_outputs_are_open({}), named_options():  # --help and --version print here
                return super().make_context(*args, **extra)
        except KeyboardInterrupt:
            error_line("interrupted")
            raise SystemExit(130) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _plain_warnings(), _orderly_end(), _while_outputs_are_open(ctx.meta), named_options():
                return super().invoke(ctx)
        except ConvsmithError as error:
            error_line(str(error), type(error).__name__)
            ctx.exit(exit_status(error))
        except (click.ClickException, click.exceptions.Exit, click.Abort, EOFError):
            raise
        except KeyboardInterrupt:
            error_line("interrupted")
            ctx.exit(130)
        except OSError as error:
            error_line(str(error), type(error).__name__)
            ctx.exit(2)
        except MemoryError as error:
            error_line(f"the arrays do not fit into this machine's memory: {error}", "UsageError")
            ctx.exit(2)
        except Exception as error:
            command = shlex.join(["convsmith", *sys.argv[1:]])
            fault = InternalError(f"{type(error).__name__}: {error}", repro=command)
            error_line(str(fault), "InternalError")
            ctx.exit(1)


def _open_streams() -> None:
    """Open standard streams that the caller has closed: inputs are empty, and outputs are dropped. No other file takes
    the number of one then.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


@contextmanager
def _while_outputs_are_open(meta: Mapping[str, Any]) -> Iterator[None]:
    """End the command when the reader of an output has closed it, as `head` does after its lines, or when an output has
    no space left.

    The status is 2 in the second case. In the first case, it is 0, or the status of the rows printed so far if the
    command has noted it in `meta`.
    """
    try:
        yield
    except BrokenPipeError:
        closed = [stream for stream in (sys.stdout, sys.stderr) if _is_closed_pipe(stream)]
        if not closed:
            raise  # a pipe to a worker
        drop(*closed)
        raise SystemExit(meta.get(STATUS, 0)) from None
    except OSError as error:
        if not _is_full(error):
            raise
        error_line(f"the output cannot be written: {error.strerror}")
        drop(sys.stdout, sys.stderr)
        raise SystemExit(2) from None


def _is_full(error: OSError) -> bool:
    """Return whether a stream has no space left; an error of a named file is that of another one."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _is_closed_pipe(stream: TextIO) -> bool:
    """Return whether `stream` is a pipe, or a socket, whose other end is closed."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # errors alone
        return bool(poll.poll(0))
    except (OSError, ValueError, AttributeError):  # closed, or no file of the system
        return False


@contextmanager
def _orderly_end() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the command as an error does: the terminal's cursor comes back, and workers end."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before: dict[signal.Signals, Any] = {}
    if current_thread() is main_thread():  # Python permits no other to set handlers
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show each of convsmith's warnings as one line, without the source line that Python adds."""
    with warnings.catch_warnings():
        other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, ConvsmithWarning):
                error_line(str(message), "warning")
            else:
                other(message, category, *place, **more)

        warnings.showwarning = show
        warnings.simplefilter("always", ConvsmithWarning)
        yield


@click.group(cls=_Group, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="convsmith")
def main() -> None:
    """Generate, verify, time and explain convolution kernels for this machine."""


if __name__ == "__main__":
    main()
