"""The exception classes that a user of convsmith can meet.

Every message names the wrong item (a dim, a loop, a buffer, an option) with its value, and states which values are
legal. Every error has a `code`, a short kebab-case word that survives a rewording of the message: the tuner counts
rejected configs by code, and tests assert on it. Errors can be pickled, because worker processes send them to their
parent. A message may quote names of files, models and other libraries; characters that a terminal would obey are
escaped in it.
"""

from __future__ import annotations

from convsmith.diag.printable import LINES, printable

__all__ = ["ConfigError", "ConvsmithError", "InternalError", "ToolchainError", "UnsupportedError", "UsageError"]


class ConvsmithError(Exception):
    """Base class of every error that convsmith raises on purpose."""

    default_code = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = printable(message, LINES)
        self.code = code if code is not None else self.default_code

    def __str__(self) -> str:
        return self.message

    def located(self, place: str) -> ConvsmithError:
        """Return the same error with a message that begins with the ``place`` where it occurred."""
        message = printable(f"{place}: {self.message}", LINES)
        # Not `copy.copy`: libraries of clusters register a way to pickle every exception, and copies made by it share
        # their attributes with the original.
        found = type(self).__new__(type(self), *self.args[:-1], message)
        vars(found).update(vars(self), message=message)
        return found


class UsageError(ConvsmithError):
    """The request is not legal: a malformed descriptor, a wrong shape or type, an unknown option."""

    default_code = "usage"


class ConfigError(ConvsmithError):
    """The problem is legal, but the config is not legal for this problem on this target. `code` is the first argument.
    """

    default_code = "config"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code=code)
        self.args = (code, message)


class UnsupportedError(ConvsmithError):
    """The request is legal, but convsmith cannot serve it; the message names the nearest request that it can serve."""

    default_code = "unsupported"


class ToolchainError(ConvsmithError):
    """LLVM, an assembler or a driver rejected its input. `text` holds that input, or the tool's full report."""

    default_code = "toolchain"

    def __init__(self, message: str, *, text: str = "", code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.text = text


class InternalError(ConvsmithError):
    """A fault of convsmith itself. `repro`, if known, is a shell command that reproduces it; the message ends with it.
    """

    default_code = "internal"

    def __init__(self, message: str, *, repro: str = "", code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.repro = repro

    def __str__(self) -> str:
        return (
            f"{self.message}\nThis is a fault in convsmith. To reproduce: {self.repro}" if self.repro else self.message
        )
