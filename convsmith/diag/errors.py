"""The error classes that a user can meet, and what each one means.

Every message names what is wrong (a dim, a loop, a buffer, an option, with its value) and what would be legal.
Every error has a `code`: a short kebab-case word that stays the same when the message is reworded, so that the
tuner can count rejections and tests can assert on it. Errors survive pickling (worker processes send them back).
"""

from __future__ import annotations

__all__ = ["ConfigError", "ConvsmithError", "InternalError", "ToolchainError", "UnsupportedError", "UsageError"]


class ConvsmithError(Exception):
    """Base of every error that this package raises on purpose."""

    default_code = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else self.default_code

    def __str__(self) -> str:
        return self.message


class UsageError(ConvsmithError):
    """What was asked for is not legal: a malformed descriptor, a wrong shape or type, an unknown option."""

    default_code = "usage"


class ConfigError(ConvsmithError):
    """The problem is legal, the config is not, for this problem and target. The code, which is counted, comes first."""

    default_code = "config"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code=code)
        self.args = (code, message)


class UnsupportedError(ConvsmithError):
    """Legal, but not available here: the message names the nearest thing that is."""

    default_code = "unsupported"


class ToolchainError(ConvsmithError):
    """LLVM, an assembler or a driver refused what it was given. `text` keeps the input or the full report."""

    default_code = "toolchain"

    def __init__(self, message: str, *, text: str = "", code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.text = text


class InternalError(ConvsmithError):
    """Our fault. `repro`, where known, is the one command line that shows the failure again; the message ends in it."""

    default_code = "internal"

    def __init__(self, message: str, *, repro: str = "", code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.repro = repro

    def __str__(self) -> str:
        return (
            f"{self.message}\nThis is a fault in convsmith. To reproduce: {self.repro}" if self.repro else self.message
        )
