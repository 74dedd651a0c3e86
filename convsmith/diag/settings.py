"""Environment variables of convsmith: typed, documented, validated, and overridable in a `with` block.

Each variable is one row of `VARIABLES`. A value is read from the environment at first use and kept, because kernels
query settings on every call; `settings.reload()` reads the environment again. `settings.scope(dump=..., verbose=...)`
overrides values for the current thread (and asyncio task) until the block ends; other threads keep theirs.

An illegal value raises `UsageError`, which names the variable, the value and the legal values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.diag.forking import import_lock
from convsmith.diag.record import record

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "EVENTS", "MAX_THREADS", "SIZES", "VARIABLES", "FileChoice", "Settings", "Variable", "read_size", "settings",
]  # fmt: skip

EVENTS = ("create", "exec", "cache")
CHECKS = ("off", "verify", "interpret")
ACCURACIES = ("strict", "relaxed")

MAX_THREADS = 1024
"""Largest number of threads that a kernel may be compiled for."""
SIZES = "a number of bytes with an optional K, M, G or T, such as 256M"
"""The sizes that `read_size` reads, in words."""

FileChoice: TypeAlias = "Path | Literal['default', 'off']"
"""A file or directory, the platform's default one, or no file."""

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


def _parse_verbose(text: str) -> frozenset[str]:
    if text in ("", "0", "none", "off"):
        return frozenset()
    if text in ("1", "all", "on"):
        return frozenset(EVENTS)
    events = frozenset(word.strip() for word in text.split(","))
    if not events <= set(EVENTS):
        raise ValueError
    return events


def _parse_dump(text: str) -> Path | None:
    return _path(text) if text else None


def _parse_file(text: str) -> FileChoice:
    if text in ("", "default"):
        return "default"
    return "off" if text in ("0", "off", "none") else _path(text)


def _path(text: str) -> Path:
    with import_lock:
        from pathlib import Path

    return Path(text).expanduser()


def read_size(text: str) -> int:
    """Return the bytes of a text such as 4096, 256M or 256MiB. ValueError if it is none."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError
    return int(match[1]) << 10 * " kmgt".index(match[2].lower() or " ")


def _parse_check(text: str) -> str:
    word = {"": "off", "0": "off", "none": "off", "1": "verify"}.get(text, text)
    if word not in CHECKS:
        raise ValueError
    return word


def _parse_threads(text: str) -> int | None:
    if text == "":
        return None
    count = int(text)
    if not 1 <= count <= MAX_THREADS:
        raise ValueError
    return count


def _parse_target(text: str) -> str | None:
    if text in ("", "native"):
        return None
    if not _NAME.fullmatch(text):
        raise ValueError
    return text


def _parse_micro_architecture(text: str) -> str | None:
    if text == "":
        return None
    if not _NAME.fullmatch(text):
        raise ValueError
    return text


def _parse_accuracy(text: str) -> str:
    if text not in ("", *ACCURACIES):
        raise ValueError
    return text or "strict"


def _parse_program(text: str) -> str | None:
    return os.path.expanduser(text) or None


@record(frozen=True)
class Variable:
    """One environment variable. `key` is the attribute of `settings`; `default` is the text used when it is not set."""

    env: str
    key: str
    parse: Callable[[str], Any]
    legal: str
    doc: str
    default: str = ""

    def value(self, text: str) -> Any:
        """Return `text` converted to the variable's type. UsageError if it is not legal."""
        try:
            return self.parse(text)
        except (ValueError, RuntimeError):  # `expanduser` raises RuntimeError for an unknown user
            message = f"{self.env}={shown(text)} is not legal: expected {self.legal}"
            raise UsageError(message, code="bad-setting") from None


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "CONVSMITH_VERBOSE",
        "verbose",
        _parse_verbose,
        "0, 1, or a comma-separated list of " + ", ".join(EVENTS),
        "Events to report, as CSV lines on standard error: kernels made, kernels run, cache traffic.",
    ),
    Variable(
        "CONVSMITH_DUMP",
        "dump",
        _parse_dump,
        "a directory (made when missing), or empty for none",
        "Directory that receives the IR after every pass, the LLVM text and the assembly of each kernel compiled.",
    ),
    Variable(
        "CONVSMITH_CACHE",
        "cache",
        _parse_file,
        "a directory, 'default' or 'off'",
        "Where compiled kernels are kept: the platform's cache directory, another one, or nowhere.",
        "default",
    ),
    Variable(
        "CONVSMITH_CACHE_SIZE",
        "cache_size",
        read_size,
        SIZES,
        "Most bytes that the cache may take; the least recently used entries go first.",
        "256M",
    ),
    Variable(
        "CONVSMITH_DATABASE",
        "database",
        _parse_file,
        "a file, 'default' or 'off'",
        "File of measured configs: in the platform's data directory, or another; off ignores the package's tables too.",
        "default",
    ),
    Variable(
        "CONVSMITH_CHECK",
        "check",
        _parse_check,
        "off (0), verify (1) or interpret",
        "Checks after each pass: verify the stage's grammar, or also interpret (if small) and compare with numpy.",
        "off",
    ),
    Variable(
        "CONVSMITH_THREADS",
        "threads",
        _parse_threads,
        f"a whole number from 1 to {MAX_THREADS}, or empty for all CPUs of the process",
        "Threads of kernels for which no count is asked.",
    ),
    Variable(
        "CONVSMITH_TARGET",
        "target",
        _parse_target,
        "the name of an instruction set (see `convsmith machine`), or native",
        "Instruction set of kernels for which none is asked.",
        "native",
    ),
    Variable(
        "CONVSMITH_MICRO_ARCHITECTURE",
        "micro_architecture",
        _parse_micro_architecture,
        "the name of a micro-architecture (see `convsmith machine`), or empty for that of this CPU",
        "Micro-architecture for which configs are chosen, whatever this machine is.",
    ),
    Variable(
        "CONVSMITH_ACCURACY",
        "accuracy",
        _parse_accuracy,
        "strict or relaxed",
        "Sums of convsmith.torch's functions: strict, or those of transforms where these are measured to be faster.",
        "strict",
    ),
    Variable(
        "CONVSMITH_BOCHS",
        "bochs",
        _parse_program,
        "the path of an executable, or empty for bochs on PATH",
        "Bochs, the emulator under which tests run kernels for instructions that this machine lacks.",
    ),
)
_BY_KEY = {variable.key: variable for variable in VARIABLES}
_NONE: Mapping[str, Any] = MappingProxyType({})


class Settings:
    """The settings in force. The process has one instance, `settings`; tests create instances over their own mapping.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._process: dict[str, Any] = {}
        self._overrides: ContextVar[Mapping[str, Any]] = ContextVar("convsmith_settings", default=_NONE)

    def _value(self, key: str) -> Any:
        overrides = self._overrides.get()
        if key in overrides:
            return overrides[key]
        if key not in self._process:
            variable = _BY_KEY[key]
            self._process[key] = variable.value(self._environment.get(variable.env, "") or variable.default)
        return self._process[key]

    @property
    def verbose(self) -> frozenset[str]:
        """The events to log, a subset of `EVENTS`."""
        return self._value("verbose")  # type: ignore[no-any-return]

    @property
    def dump(self) -> Path | None:
        """Directory that receives IR, LLVM text and assembly; None writes nothing."""
        return self._value("dump")  # type: ignore[no-any-return]

    @property
    def cache(self) -> FileChoice:
        """Directory of compiled kernels; "default" is the platform's cache directory, "off" disables the cache."""
        return self._value("cache")  # type: ignore[no-any-return]

    @property
    def cache_size(self) -> int:
        """Upper limit of the cache's size in bytes."""
        return self._value("cache_size")  # type: ignore[no-any-return]

    @property
    def database(self) -> FileChoice:
        """File of measured configs; "default" is in the platform's data directory, "off" leaves every choice to the
        model.
        """
        return self._value("database")  # type: ignore[no-any-return]

    @property
    def check(self) -> Literal["off", "verify", "interpret"]:
        """Kind of checks that run after each pass."""
        return self._value("check")  # type: ignore[no-any-return]

    @property
    def threads(self) -> int | None:
        """Default number of threads; None uses all CPUs available to the process."""
        return self._value("threads")  # type: ignore[no-any-return]

    @property
    def target(self) -> str | None:
        """Default instruction-set level; None uses the best level of this machine."""
        return self._value("target")  # type: ignore[no-any-return]

    @property
    def micro_architecture(self) -> str | None:
        """Name of the micro-architecture for which configs are chosen; None uses this machine's CPU."""
        return self._value("micro_architecture")  # type: ignore[no-any-return]

    @property
    def accuracy(self) -> Literal["strict", "relaxed"]:
        """Accuracy of the functions that have PyTorch's arguments, on the CPU."""
        return self._value("accuracy")  # type: ignore[no-any-return]

    @property
    def choice(self) -> tuple[str | None, str | None, str]:
        """The settings that determine the default kernel of a problem, as a part of the keys of in-process caches."""
        return self.target, self.micro_architecture, self.accuracy

    @property
    def bochs(self) -> str | None:
        """Path of the Bochs emulator; None searches PATH."""
        return self._value("bochs")  # type: ignore[no-any-return]

    def validate(self) -> None:
        """Read every variable now. UsageError names the first one with an illegal value."""
        for variable in VARIABLES:
            self._value(variable.key)

    def reload(self) -> None:
        """Discard the values read so far; the next use reads the environment again. Open scopes keep their values."""
        self._process.clear()

    @contextmanager
    def scope(self, **values: object) -> Iterator[None]:
        """Override settings inside a `with` block, for example `scope(verbose="create,exec", dump=tmp_path,
        threads=2)`.

        A value is the environment variable's text or a value of the setting's type; None means "not set".
        """
        typed: dict[str, Any] = {}
        for key, value in values.items():
            if key not in _BY_KEY:
                raise UsageError(f"unknown setting {key!r}: legal are {choices(key, _BY_KEY)}", code="bad-setting")
            variable = _BY_KEY[key]
            try:
                text = _text(value)
            except ValueError:  # Python prints no integer of more than 4,300 digits
                raise UsageError(
                    f"{key}={shown(value)} is not legal: expected {variable.legal}", code="bad-setting"
                ) from None
            typed[key] = variable.value(text or variable.default)
        token = self._overrides.set({**self._overrides.get(), **typed})
        try:
            yield
        finally:
            self._overrides.reset(token)

    def describe(self) -> str:
        """Return one paragraph per variable: its name, value, origin of the value, legal values and meaning."""
        paragraphs = []
        for variable in VARIABLES:
            if variable.key in self._overrides.get():
                origin = "scope"
            else:
                origin = "environment" if self._environment.get(variable.env) else "default"
            value = _text(self._value(variable.key)) or variable.default or "(not set)"
            paragraphs.append(f"{variable.env} = {value}  [{origin}]\n    {variable.doc}\n    Legal: {variable.legal}.")
        return "\n".join(paragraphs)


def _text(value: object) -> str:
    """Return `value` as the text of an environment variable."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (set, frozenset, tuple, list)):
        return ",".join(sorted(map(str, value)))
    return str(value)


settings = Settings()
