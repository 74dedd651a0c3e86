"""`convsmith db`: the database of measurements that `tune` writes and `compile` reads."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path

import click

from convsmith.cli.group import CommandGroup
from convsmith.cli.output import Rows, note, write_file
from convsmith.cli.table import Column
from convsmith.cli.tune import opened, time_text
from convsmith.diag.errors import UsageError
from convsmith.diag.files import read_text
from convsmith.schedule.former_words import in_present_words
from convsmith.tune.records.checked_rows import is_line
from convsmith.tune.records.database import IN_MEMORY, Database, check_rows
from convsmith.tune.records.measured import Measured, best_of
from convsmith.tune.records.origin import compiler_key, is_of_this_machine

__all__ = ["db"]

JSON_SCHEMA, FORMER_SCHEMA = 2, 1
MAX_EXPORT = 1 << 30
"""Bytes of the largest export that is read."""


@click.group(cls=CommandGroup, epilog="Example: convsmith db list")
def db() -> None:
    """Look at the database of measurements, or move rows in and out of it."""


@db.command("list", epilog="Example: convsmith db list")
def list_() -> None:
    """File, machines and compilers, with their numbers of problems and configs."""
    with opened(create=False) as database:
        rows, machines = database.rows(), database.machines()
        note(f"database  {database.path}, {database.path.stat().st_size >> 10} KiB")
    for (machine, compiler), group in groupby(sorted(rows, key=_origin), _origin):
        own = list(group)
        here = "another machine: hints"
        if any(is_of_this_machine(machine, target) for target in {row.target for row in own}):
            here = "this machine" if compiler == compiler_key() else "another compiler: hints"
        states = ", ".join(f"{n} {status}" for status, n in Counter(row.status for row in own).most_common())
        note(f"{machine} {compiler}  {len({row.problem for row in own})} problems, {states} ({here})")
        if machine in machines:
            note(f"    {machines[machine]}")


@db.command(epilog="Example: convsmith db best kh3")
@click.argument("text", required=False, default="")
@click.option("--all", "everywhere", is_flag=True, help="Rows of other machines and compilers too.")
@click.option("--wide", is_flag=True, help="All columns, whatever the width.")
def best(text: str, everywhere: bool, wide: bool) -> None:
    """The best config of each problem whose line contains TEXT, on this machine and its devices, by this compiler.
    """
    with opened(create=False) as database:
        rows = [row for row in database.rows() if text in row.problem]
    if not everywhere:
        asked = {(row.machine, row.target) for row in rows if row.compiler == compiler_key()}
        here = {origin for origin in asked if is_of_this_machine(*origin)}
        rows = [row for row in rows if row.compiler == compiler_key() and (row.machine, row.target) in here]
    found = [best_of(group) for _, group in groupby(sorted(rows, key=_question), _question)]
    known = [row for row in found if row is not None]
    if not known:
        note("no measurement" + (f" of a problem that contains {text!r}" if text else ""))
        return
    table = Rows(
        [
            Column("problem", max(len(row.problem) for row in known), left=True), Column("threads", 7, 3),
            Column("time", 9), Column("of first", 8), Column("spread", 6, 4), Column("samples", 7, 4),
            Column("config", 38, 5, left=True),
        ], wide=wide,
    )  # fmt: skip
    table.head()
    for row in known:
        table.row({
            "problem": row.problem, "threads": str(row.threads), "time": time_text(row.seconds),
            "of first": f"{row.ratio:.2f}", "spread": f"{row.spread:.2f}", "samples": str(row.rounds),
            "config": row.config,
        })  # fmt: skip


@db.command(epilog="Example: convsmith db export measured.json")
@click.argument("file")
def export(file: str) -> None:
    """Write all rows to FILE as JSON; - is standard output."""
    with opened(create=False) as database:
        content = {
            "schema": JSON_SCHEMA, "machines": database.machines(), "rows": [asdict(row) for row in database.rows()],
        }  # fmt: skip
    write_file(file, json.dumps(content, indent=1))
    if file != "-":
        note(f"{len(content['rows'])} rows")  # type: ignore[arg-type]


@db.command("import", epilog="Example: convsmith db import measured.json")
@click.argument("file")
def import_(file: str) -> None:
    """Add the rows of FILE, which `export` wrote; rows that are known from more samples stay."""
    machines, rows = _read(file)
    with Database(IN_MEMORY) as other, opened() as database:
        other.put(rows)
        for machine, text in machines.items():
            other.name_machine(machine, text)
        note(f"{database.merge(other)} of {len(rows)} rows are new")


@db.command(epilog="Example: convsmith db merge other.sqlite")
@click.argument("files", nargs=-1, required=True)
def merge(files: tuple[str, ...]) -> None:
    """Add the rows of other databases; rows that are known from more samples stay."""
    with opened() as database:
        for file in files:
            with Database(Path(file), create=False, own=False) as other:
                note(f"{file}: {database.merge(other)} of {len(other.rows())} rows are new")


def _origin(row: Measured) -> tuple[str, str]:
    return row.machine, row.compiler


def _question(row: Measured) -> tuple[str, ...]:
    return row.problem, row.target, f"{row.threads:4}", row.machine, row.compiler


def _read(file: str) -> tuple[dict[str, str], list[Measured]]:
    """Return the machines and rows of a file that `export` wrote."""
    try:
        content = json.loads(read_text(file, MAX_EXPORT))
        schema, machines, rows = content["schema"], content["machines"], content["rows"]
        if schema not in (JSON_SCHEMA, FORMER_SCHEMA) or not isinstance(machines, dict) or not isinstance(rows, list):
            raise ValueError(f"schema {schema}, legal is {JSON_SCHEMA}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{file}: is no export of a database: {error}", code="bad-file") from None
    if not all(is_line(text) for item in machines.items() for text in item):
        raise UsageError(f"{file}: is no export of a database: a machine is no line of text", code="bad-file")
    found = check_rows(rows, file)
    if schema == FORMER_SCHEMA:
        found = [replace(row, config=in_present_words(row.config)) for row in found]
    return dict(machines), found
