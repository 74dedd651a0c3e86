"""The database of measurements: one row for each (problem, config, machine, compiler), in SQLite.

Many processes may read and write it at once (SQLite's write-ahead log). Each measurement is committed when it is made,
so an interrupted search loses nothing. A row of another machine or of another compiler is a hint: a search measures its
config first, and `compile` never takes it as it is.

A file that is no database, is damaged, or has the layout of another version, is never changed: `tune` and `db` refuse
it with DatabaseError, and `compile` goes on without it after one warning.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, fields
from pathlib import Path

from convsmith.diag.errors import ConvsmithError
from convsmith.tune.measured import Measured

__all__ = ["ANY", "IN_MEMORY", "Database", "DatabaseError", "check_rows"]

IN_MEMORY = Path(":memory:")
"""Path of a database without a file."""
ANY = -1
"""A value of a column that permits all rows."""
VERSION = 1
"""Number of the layout of the tables, which SQLite keeps as `user_version`."""
APPLICATION = 0x636F6E76
"""Number that marks the file as this project's, which SQLite keeps as `application_id`."""
BUSY_SECONDS = 10.0
"""Seconds to wait for another process that writes."""

class DatabaseError(ConvsmithError):
    """A database of measurements cannot be read or written."""

    default_code = "database"


_COLUMNS = tuple(f.name for f in fields(Measured))
_KEY = ("problem", "config", "machine", "compiler")
_TYPES = {"str": "TEXT", "Status": "TEXT", "int": "INTEGER", "float": "REAL"}
_TABLE = (
    "CREATE TABLE IF NOT EXISTS measurements ("
    + ", ".join(f"{f.name} {_TYPES[str(f.type)]} NOT NULL" for f in fields(Measured))
    + f", PRIMARY KEY ({', '.join(_KEY)})) WITHOUT ROWID"
)
_MACHINES = "CREATE TABLE IF NOT EXISTS machines (machine TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID"
_PUT = f"INSERT OR REPLACE INTO measurements ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"


class Database:
    """An open database. Use it in the process and thread that opened it; close it, or use it as a context manager.

    The path `IN_MEMORY` stands for one without a file.
    """

    def __init__(self, path: Path, create: bool = True) -> None:
        self.path = path
        if create and path != IN_MEMORY:
            self._make_directory()
        elif not create and not path.is_file():
            raise DatabaseError(f"{path}: there is no database; `convsmith tune` makes one", code="no-database")
        with self._errors("opened"):
            self._connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                self._prepare()
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
        with self._errors("read"):
            return dict(self._connection.execute("SELECT machine, text FROM machines ORDER BY machine"))

    def rows(self, **columns: str | int) -> list[Measured]:
        """Return the rows whose columns have the given values, by problem, the fastest config first.

        The value `ANY` permits all.
        """
        equal = {name: value for name, value in columns.items() if value != ANY}
        where = " AND ".join(f"{name} = ?" for name in equal)
        query = f"SELECT {', '.join(_COLUMNS)} FROM measurements" + (f" WHERE {where}" if where else "")
        with self._errors("read"):
            found = self._connection.execute(f"{query} ORDER BY problem, status != 'ok', ratio", tuple(equal.values()))
            return [Measured(*row) for row in found]

    def merge(self, other: Database) -> int:
        """Store the rows of ``other`` that this database lacks, or has from fewer rounds; return their number."""
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

    def _prepare(self) -> None:
        """Check the version, and create the tables in an empty file."""
        connection = self._connection
        # One transaction: another process may be making the tables.
        connection.execute("BEGIN")
        try:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        finally:
            connection.execute("COMMIT")
        if tables and application != APPLICATION:
            raise DatabaseError(f"{self.path}: is a database of another program; it stays as it is", code="foreign")
        if tables and version != VERSION:
            raise DatabaseError(
                f"{self.path}: has version {version} of the tables, and this convsmith reads version {VERSION}; "
                "move the file away, or set CONVSMITH_DATABASE to another one", code="version",
            )  # fmt: skip
        if not tables:
            self._log_ahead()
            with self._transaction():
                connection.execute(_TABLE)
                connection.execute(_MACHINES)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("PRAGMA synchronous = NORMAL")

    def _log_ahead(self) -> None:
        """Set the journal that lets others read while one writes; SQLite does not wait for a lock to do so."""
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
        """Turn SQLite's errors into one message with the file and what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise DatabaseError(f"{self.path}: cannot be {verb}: {_reason(error, self.path)}") from None
        except sqlite3.DatabaseError as error:
            raise DatabaseError(
                f"{self.path}: is damaged ({error}); move it away, or restore what is readable with "
                f"`sqlite3 {self.path} .recover`", code="damaged",
            ) from None  # fmt: skip


def _reason(error: sqlite3.OperationalError, path: Path) -> str:
    """Return why an operation failed, as text; a full disk or a file of its largest size is named with the space left.
    """
    stat = os.statvfs(path.parent)
    free = f"{stat.f_bavail * stat.f_frsize >> 10} KiB are free"
    if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
        return f"the disk is full ({free})"
    if error.sqlite_errorcode == sqlite3.SQLITE_IOERR_WRITE:
        return f"the system refuses to write more ({free}; the size of a file may be limited)"
    if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:  # the rest of the code is a detail
        return f"another process has written to it for {BUSY_SECONDS:g} seconds"
    return str(error)


def _is_better_known(row: Measured, own: Measured | None) -> bool:
    return own is None or row.rounds > own.rounds


def check_rows(rows: Sequence[object], source: str) -> list[Measured]:
    """Return rows read from JSON as values; DatabaseError names the first illegal one."""
    out = []
    for number, row in enumerate(rows, 1):
        legal = isinstance(row, dict) and set(row) <= set(_COLUMNS) and set(_KEY) <= set(row)
        try:
            if not legal:
                raise TypeError
            made = Measured(**row)  # type: ignore[arg-type]
            if any(type(getattr(made, f.name)) not in _READ[str(f.type)] for f in fields(made)):
                raise TypeError
        except TypeError:
            raise DatabaseError(
                f"{source}: row {number} is no measurement; legal are objects with {', '.join(_COLUMNS)}", code="rows"
            ) from None
        out.append(made)
    return out


_READ = {"str": (str,), "Status": (str,), "int": (int,), "float": (float, int)}
