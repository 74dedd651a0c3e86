"""`convsmith bench MODEL.onnx` and `--torch`: a model's convolutions beside the kernels of its own framework."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

from convsmith.cli.bench_html import profile_html
from convsmith.cli.models import ModelInputs
from convsmith.cli.output import Rows, error_line, note, progress, write_file
from convsmith.cli.table import GIVES_WAY, Column
from convsmith.diag.errors import UsageError
from convsmith.diag.forking import import_lock
from convsmith.measure.description import describe
from convsmith.measure.profile import TEXTS, node_cells
from convsmith.onnx.node_profiler import NodeProfiler
from convsmith.onnx.profiling import onnx_profiler
from convsmith.page.document import write_page

__all__ = ["bench_model", "check_model_options", "model_profiler"]

_RANKS = {"problem": GIVES_WAY, "operator": GIVES_WAY + 1, "agrees": GIVES_WAY - 2, "could win us": GIVES_WAY - 1}
"""Columns that are dropped if the terminal is too narrow, with the order in which they are dropped."""
_WIDTHS = {"node": 24, "operator": 13, "problem": 60, "agrees": 7}
_NUMBERS = 9


def check_model_options(source: str, given: Mapping[str, object], json_file: str | None) -> None:
    """Raise UsageError if one of the options ``given`` is set, none of which applies to a model, or if the directory of
    ``json_file`` does not exist.
    """
    wrong = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if wrong:
        raise UsageError(
            f"{source} is a model, which sets its problems and is compared with its own framework: legal is no "
            f"{wrong[0]}", code="model",
        )  # fmt: skip
    if json_file not in (None, "-") and not Path(str(json_file)).absolute().parent.is_dir():
        raise UsageError(f"--json={json_file}: there is no such directory", code="bad-file")


def model_profiler(source: str, torch: bool, inputs: ModelInputs, **options: Any) -> NodeProfiler:
    """Return the profiler of the model in the file ``source``, or of the PyTorch model that a function returns."""
    if torch and inputs:
        raise UsageError("--input is legal with a MODEL.onnx; the function of --torch returns inputs", code="inputs")
    with progress(1) as bar:
        bar.start(f"one run of {source}")
        if not torch:
            return onnx_profiler(source, inputs, **options)
        with import_lock:
            from convsmith.torch.profiling import torch_profiler, with_function  # UnsupportedError without torch
        model, given = with_function(source)
        return torch_profiler(model, given, name=source, **options)


def bench_model(
    profiler: NodeProfiler, budget: float | None, wide: bool, json_file: str | None, html: str | None
) -> int:
    """Measure and print the nodes, with a summary; return the exit status: 1 if a result does not agree."""
    problems = profiler.problems
    longest = max((len(str(p)) for p in problems), default=0)
    table: Rows | None = None
    end = inf if budget is None else time.perf_counter() + budget
    stopped = ""
    with progress(len(problems)) as bar:
        rows = profiler.rows()
        for problem in problems:
            if time.perf_counter() >= end:
                stopped = "the budget is spent"
                break
            bar.start(str(problem))
            try:
                row = next(rows, None)
            except KeyboardInterrupt:
                stopped = "interrupted"
                break
            if row is None:
                break
            cells = node_cells(row, profiler.host_name)
            with bar.aside():
                if table is None:
                    table = Rows(_columns(cells, longest), json_file == "-", wide)
                    table.text(profiler.heading)
                    table.head()
                table.row(cells)
            bar.advance()
    profile = profiler.result
    if json_file != "-":
        for line in profile.summary():
            note(line)
    if stopped:
        error_line(f"{stopped}: {len(profile.nodes)} of {len(problems)} problems measured")
    if json_file is not None:
        content = {"machine": describe(), **profile.as_data(), "complete": not stopped}
        write_file(json_file, json.dumps(content, indent=1), "--json=")
    if html is not None:
        write_page(html, profile_html(profile))
    if stopped == "interrupted":
        return 130
    return 0 if all(node.agrees for node in profile.nodes) else 1


def _columns(cells: Mapping[str, str], longest: int) -> list[Column]:
    """Return the columns of a profile whose rows all have `cells`; problems have at most `longest` characters."""
    widths = {**_WIDTHS, "problem": min(longest, _WIDTHS["problem"])}
    return [
        Column(title, max(widths.get(title, _NUMBERS), len(title)), _RANKS.get(title, 0), left=title in TEXTS)
        for title in cells
    ]
