"""The database of measurements: one row for each (problem, config, machine, compiler), in SQLite.

Many processes may read and write it at once (SQLite's write-ahead log). Each measurement is committed when it is made,
so an interrupted search loses nothing. A row of another machine or of another compiler is a hint: a search measures its
config first, and `compile` never uses it directly.

A file that is no database, is damaged, or has the layout of another version, is never changed: `tune` and `db` reject
it with DatabaseError, and `compile` continues without it after one warning. The same holds for a file that other users
can change. Rows with illegal values are dropped, with one warning for all of them. Reading ends after a bounded number
of rows and steps.
Configs of a file of version 1 have former words; opening it to write converts them, and reading it shows present ones.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, astuple, fields
from pathlib import Path
from typing import Any

from convsmith.diag.errors import ConvsmithError
from convsmith.diag.expect import shown
from convsmith.diag.files import directories_above, replaceable, writable_by_others
from convsmith.diag.warning import warn
from convsmith.schedule.former_words import FORMER_WORDS
from convsmith.tune.records.checked_rows import COLUMNS, checked, is_line
from convsmith.tune.records.measured import DatabaseWarning, Measured

__all__ = ["ANY", "IN_MEMORY", "Database", "DatabaseError", "check_rows"]

IN_MEMORY = Path(":memory:")
"""Path of a database without a file."""
ANY = -1
"""A value of a column that matches all rows."""
VERSION, FORMER_VERSION = 2, 1
"""Number of the tables that this version makes, which SQLite keeps as `user_version`, and of those whose configs have
former words.
"""
APPLICATION = 0x636F6E76
"""Number that marks the file as this project's, which SQLite keeps as `application_id`."""
BUSY_SECONDS = 10.0
"""Seconds to wait for another process that is writing."""

MAX_ROWS = 1_000_000
"""Maximum number of rows that a query returns."""
STEP, MAX_STEPS = 1_000_000, 300
"""Instructions of SQLite's machine between two calls of the handler that counts them, and calls after which a query is
given up: reading `MAX_ROWS` rows takes 60.
"""
LARGEST_VALUE = 1 << 20
"""Bytes of the largest text that is read."""
_BESIDE = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files of a database."""


class DatabaseError(ConvsmithError):
    """A database of measurements cannot be read or written."""

    default_code = "database"


_KEY = ("problem", "config", "machine", "compiler")
_TYPES = {"str": "TEXT", "Status": "TEXT", "int": "INTEGER", "float": "REAL"}
_MEASUREMENTS = (
    "CREATE TABLE IF NOT EXISTS measurements ("
    + ", ".join(f"{f.name} {_TYPES[str(f.type)]} NOT NULL" for f in fields(Measured))
    + f", PRIMARY KEY ({', '.join(_KEY)})) WITHOUT ROWID"
)
_MACHINES = "CREATE TABLE IF NOT EXISTS machines (machine TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID"
_TABLES = {"measurements": _MEASUREMENTS, "machines": _MACHINES}
_PUT = f"INSERT OR REPLACE INTO measurements ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


def _present_config() -> str:
    """Return SQL's expression for a config in present words."""
    text = "' ' || config"
    for former, present in FORMER_WORDS.items():
        text = f"replace({text}, ' --{former}=', ' --{present}=')"
    return f"substr({text}, 2)"


_PRESENT_CONFIG = _present_config()

_told: set[tuple[Path, str]] = set()
"""Files, with the warnings about their rows that were given in this process."""


class Database:
    """An open database. Use it in the process and thread that opened it; close it, or use it as a context manager.

    The path `IN_MEMORY` denotes a database without a file. Without `create`, the file is only read. An `own` database
    is rejected if another user can change it.
    """

    def __init__(self, path: Path, create: bool = True, own: bool = True) -> None:
        self.path = path
        self._steps = 0
        self._has_former_words = False
        if create and path != IN_MEMORY:
            self._make_directory()
        elif not create and not path.exists():
            raise DatabaseError(f"{path}: there is no database; `convsmith tune` makes one", code="no-database")
        if path != IN_MEMORY:
            self._check_files(own)
        with self._errors("opened"):
            name = str(path) if create else f"{path.absolute().as_uri()}?mode=ro"
            self._connection = sqlite3.connect(name, timeout=BUSY_SECONDS, isolation_level=None, uri=not create)
            try:
                self._has_tables = self._prepare(create)
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, rows: Iterable[Measured]) -> None:
        """Store rows in one transaction; a row replaces an older one of the same problem, config and origin."""
        with self._errors("written"), self._transaction():
            self._connection.executemany(_PUT, map(astuple, rows))

    def name_machine(self, machine: str, text: str) -> None:
        """Store the description of a machine."""
        with self._errors("written"):
            self._connection.execute("INSERT OR REPLACE INTO machines VALUES (?, ?)", (machine, text))

    def machines(self) -> dict[str, str]:
        """Return the description of each machine by its key."""
        found = self._read("SELECT machine, text FROM machines ORDER BY machine")
        legal = {machine: text for machine, text in found if is_line(machine) and is_line(text)}
        if len(legal) < len(found):
            self._warn(f"{len(found) - len(legal)} of {len(found)} descriptions of machines are no lines of text")
        return legal

    def rows(self, **columns: str | int) -> list[Measured]:
        """Return the rows whose columns have the given values, by problem, the fastest config first.

        The value `ANY` matches all. Damaged rows are dropped, with a warning.
        """
        equal = {name: value for name, value in columns.items() if value != ANY}
        read = {name: _PRESENT_CONFIG if self._has_former_words and name == "config" else name for name in COLUMNS}
        where = " AND ".join(f"{read[name]} = ?" for name in equal)
        query = f"SELECT {', '.join(read.values())} FROM measurements" + (f" WHERE {where}" if where else "")
        found = self._read(f"{query} ORDER BY problem, status != 'ok', ratio", tuple(equal.values()))
        legal, flaws = [], []
        for values in found:
            try:
                legal.append(checked(values))
            except ValueError as flaw:
                flaws.append(f"problem {shown(values[0])}: {flaw}")
        if flaws:
            self._warn(f"{len(flaws)} of {len(found)} rows are damaged and not used; the first one: {flaws[0]}")
        return legal

    def merge(self, other: Database) -> int:
        """Store the rows of ``other`` that this database lacks, or has with fewer rounds; return their number."""
        own = {self._identity(row): row for row in self.rows()}
        new = [row for row in other.rows() if _is_better_known(row, own.get(self._identity(row)))]
        self.put(new)
        for machine, text in other.machines().items():
            self.name_machine(machine, text)
        return len(new)

    @staticmethod
    def _identity(row: Measured) -> tuple[str, ...]:
        return tuple(getattr(row, name) for name in _KEY)

    def _make_directory(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise DatabaseError(f"{self.path.parent}: cannot be made: {error.strerror}") from None

    def _check_files(self, own: bool) -> None:
        """Reject files that are not regular and, for an `own` database, files that other users can change."""
        problem = replaceable(directories_above(self.path)) if own else ""
        for ending in _BESIDE:
            try:
                status = os.stat(f"{self.path}{ending}")
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                raise DatabaseError(f"{self.path}: cannot be reached: {error}") from None
            if not stat.S_ISREG(status.st_mode):
                raise DatabaseError(f"{self.path}{ending}: is no regular file")
            problem = problem or (writable_by_others(status) if own else "")
        if problem:
            raise DatabaseError(
                f"{self.path}: is not used: {problem}; set CONVSMITH_DATABASE to a file of your own with mode 0600, "
                "or to 'off'", code="untrusted",
            )  # fmt: skip

    def _prepare(self, create: bool) -> bool:
        """Check the version and the tables, and create them in an empty file; return whether there are tables."""
        connection = self._connection
        connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
        connection.set_progress_handler(self._count_step, STEP)
        connection.execute("PRAGMA trusted_schema = OFF")
        # One transaction: another process may be making the tables.
        connection.execute("BEGIN")
        try:
            schema = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchmany(MAX_ROWS)
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        finally:
            connection.execute("COMMIT")
        if schema and application != APPLICATION:
            raise DatabaseError(f"{self.path}: is a database of another program; it stays as it is", code="foreign")
        if schema and version not in (VERSION, FORMER_VERSION):
            raise DatabaseError(
                f"{self.path}: has version {version} of the tables, and this convsmith reads version {VERSION}; "
                "move the file away, or set CONVSMITH_DATABASE to another one", code="version",
            )  # fmt: skip
        if schema and not _are_ours(schema):
            raise DatabaseError(
                f"{self.path}: is damaged (its tables are not those that `convsmith tune` makes); move it away",
                code="damaged",
            )
        if schema and version == FORMER_VERSION:
            self._has_former_words = not create
            if create:
                self._convert()
        if not schema and create:
            self._log_ahead()
            with self._transaction():
                for table in _TABLES.values():
                    connection.execute(table)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("PRAGMA synchronous = NORMAL")
        return bool(schema) or create

    def _convert(self) -> None:
        """Write the configs of a file of `FORMER_VERSION` in present words, unless another process has done so."""
        with self._transaction():
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version == FORMER_VERSION:
                self._connection.execute(f"UPDATE OR REPLACE measurements SET config = {_PRESENT_CONFIG}")
                self._connection.execute(f"PRAGMA user_version = {VERSION}")

    def _count_step(self) -> bool:
        """Count `STEP` instructions of a query; return whether to give it up."""
        self._steps += 1
        return self._steps > MAX_STEPS

    def _read(self, query: str, values: tuple[str | int, ...] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query; empty for a file without tables, which another process is creating."""
        if not self._has_tables:
            return []
        with self._errors("read"):
            found = self._connection.execute(query, values).fetchmany(MAX_ROWS + 1)
        if len(found) > MAX_ROWS:
            raise DatabaseError(f"{self.path}: cannot be read: it has more than {MAX_ROWS} rows", code="rows")
        return found

    def _warn(self, text: str) -> None:
        """Warn of damaged rows, once per process and text."""
        if (self.path, text) not in _told:
            _told.add((self.path, text))
            warn(f"{self.path}: {text}", DatabaseWarning)

    def _log_ahead(self) -> None:
        """Set the journal mode that permits reads during a write; SQLite does not wait for a lock to do so."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """Turn SQLite's errors into one message with the file and a remedy."""
        self._steps = 0
        try:
            yield
        except sqlite3.OperationalError as error:
            raise DatabaseError(f"{self.path}: cannot be {verb}: {_reason(error, self.path)}") from None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            # A message of SQLite contains names of the file, which may not be text.
            why = error if isinstance(error, sqlite3.DatabaseError) else "its schema holds names that are no UTF-8"
            raise DatabaseError(
                f"{self.path}: is damaged ({why}); move it away, or restore what is readable with "
                f"`sqlite3 {self.path} .recover`", code="damaged",
            ) from None  # fmt: skip


def _reason(error: sqlite3.OperationalError, path: Path) -> str:
    """Return the reason why an operation failed, as text; a full disk or a file of maximum size is reported with the
    space left.
    """
    stat = os.statvfs(path.parent)
    free = f"{stat.f_bavail * stat.f_frsize >> 10} KiB are free"
    if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
        return f"the disk is full ({free})"
    if error.sqlite_errorcode == sqlite3.SQLITE_IOERR_WRITE:
        return f"the system refuses to write more ({free}; the size of a file may be limited)"
    if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
        return f"a query takes more than {MAX_STEPS} million steps"
    if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:  # the remaining bits of the code are a detail
        return f"another process has written to it for {BUSY_SECONDS:g} seconds"
    return str(error)


def _is_better_known(row: Measured, own: Measured | None) -> bool:
    return own is None or row.rounds > own.rounds


def _are_ours(schema: Sequence[tuple[object, ...]]) -> bool:
    """Return whether a schema has this project's tables, and no view or trigger, whose code SQLite would execute."""
    made = {name: sql for kind, name, sql in schema if kind == "table"}
    ours = all(made.get(name) == sql.replace("IF NOT EXISTS ", "") for name, sql in _TABLES.items())
    return ours and not any(kind in ("view", "trigger") for kind, *_ in schema)


def check_rows(rows: Sequence[object], source: str) -> list[Measured]:
    """Return rows read from JSON as values; DatabaseError names the first illegal one."""
    out = []
    for number, row in enumerate(rows, 1):
        try:
            if not (isinstance(row, dict) and set(row) <= set(COLUMNS) and set(_KEY) <= set(row)):
                raise ValueError(f"legal are objects with {', '.join(COLUMNS)}")
            out.append(checked([row.get(name, default) for name, default in _DEFAULTS.items()]))
        except ValueError as error:
            raise DatabaseError(f"{source}: row {number} is no measurement; {error}", code="rows") from None
    return out


_DEFAULTS = {f.name: None if f.default is MISSING else f.default for f in fields(Measured)}
