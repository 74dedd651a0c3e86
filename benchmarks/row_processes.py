"""Rows of a page that is made in several runs, each row in a process of its own, so that a crash is one row."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from report import Report

__all__ = ["Row", "earlier_rows", "reason_of", "row_in_a_process"]

_REASON = 400
"""Characters of a reason that are kept."""

Row = dict[str, Any]


def earlier_rows(report: Report, keep: bool) -> dict[str, Row]:
    """Return the rows of the day's earlier runs by network; none unless `keep` asks for them."""
    file = report.stem.with_suffix(".json")
    rows = json.loads(file.read_text(encoding="utf-8"))["runs"][0]["rows"] if keep and file.exists() else []
    return {row["network"]: row for row in rows}


def row_in_a_process(script: str, name: str, options: Sequence[str]) -> Row | str:
    """Return the row that `script --one NAME OPTIONS` prints last as JSON, or the reason why it prints none."""
    command = [sys.executable, script, "--one", name, *options]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    last = done.stdout.splitlines()[-1:] or [""]
    if done.returncode or not last[0].startswith("{"):
        return f"the process ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"[:_REASON]
    row: Row = json.loads(last[0])
    return row


def reason_of(error: Exception) -> str:
    """Return the kind and the first words of an error, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_REASON]
