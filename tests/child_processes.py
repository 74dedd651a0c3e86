"""The child processes of a process, by Linux's lists of them."""

from __future__ import annotations

import os
from pathlib import Path


def children_of(pid: int) -> set[int]:
    """Return the processes that the process ``pid`` has started, ended ones that it has not waited for included."""
    threads = Path(f"/proc/{pid}/task")
    lists = [(threads / thread / "children").read_text(encoding="utf-8") for thread in os.listdir(threads)]
    return {int(child) for text in lists for child in text.split()}
