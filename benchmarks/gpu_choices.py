"""Rows of `gpu.py` that compare decisions: each default config without one of its words, and configs with words that no
default has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_rows import GpuRow

from convsmith.compiler.memory import flaw_within
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.tune.device import device_config

__all__ = ["with_choices"]

DECISIONS = (
    "resident", "store_parts", "cluster", "teams", "diagonal", "zeros", "rounds", "load_ahead", "split", "l2",
)  # fmt: skip
"""Words whose kernels compute the same without them."""
_RESULTS = {"dst", "diff_src", "diff_wei"}
_TEAMS = (
    "--target=sm_90a --lane=oc --fuse=mb+oh,mb_oh+ow --register=mb_oh_ow:64,oc:128 --reduce=kh,kw,ic "
    "--realise=hardware --pack= --instruction=wgmma_m64n128k16_bf16 --group=mb_oh_ow:128,oc:128,ic:64 --shared=src,wei "
    "--buffers={slots}"
)
OTHERS = {
    "teams": f"{_TEAMS.format(slots=6)} --teams=2", "the tiles of teams": _TEAMS.format(slots=4),
    "pairs of groups along the columns": f"{_TEAMS.format(slots=4)} --cluster=oc:2",
    "pairs of groups along the rows": f"{_TEAMS.format(slots=4)} --cluster=mb_oh_ow:2",
}  # fmt: skip
"""Configs of forward layers on sm_90a that no default is, by name."""


def with_choices(rows: Sequence[GpuRow], machine: Machine) -> Iterator[GpuRow]:
    """Yield each of ``rows`` with its default config, then with the configs that lack one of its words, and with those
    of other configs that are legal for it.
    """
    for row in rows:
        with interning():
            problem = row.problem.canonical()
            config = device_config(problem, machine)
            ways = [(f"without {word}", text) for word, text in _without(str(config))]
            ways += [(name, text) for name, text in OTHERS.items() if _suits(text, row, machine)]
            legal = [(name, text) for name, text in ways if _is_legal(problem, text, machine)]
        yield row._replace(config=str(config))
        yield from (row._replace(name=f"{row.name}, {name}", config=text) for name, text in legal)


def _without(text: str) -> Iterator[tuple[str, str]]:
    """Yield words of a config, and its text without each."""
    words = text.split()
    for word in words:
        name, _, value = word.partition("=")
        others = [x for x in words if x != word]
        if name.removeprefix("--") in DECISIONS:
            yield name.removeprefix("--"), " ".join(others)
        staged = value.split(",")
        if name == "--shared" and not _RESULTS.isdisjoint(staged):
            kept = ",".join(x for x in staged if x not in _RESULTS)
            plain = [x for x in others if not x.startswith("--store_parts=")]
            yield "results in shared memory", " ".join([*plain, f"--shared={kept}"])


def _suits(text: str, row: GpuRow, machine: Machine) -> bool:
    """Return whether another config is one of the machine, with no wider tiles of columns than the layer has."""
    config = Config.parse(text)
    return config.target == machine.name and config.group_size("oc") <= row.problem.oc


def _is_legal(problem: Problem, text: str, machine: Machine) -> bool:
    return flaw_within(problem, Config.parse(text), machine) is None
