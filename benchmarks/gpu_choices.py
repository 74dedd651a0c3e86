"""Rows of `gpu.py` that compare decisions: each default config without one of its words, and configs with words that no
default has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_rows import GpuRow

from convsmith.compiler.memory import flaw_within
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import DEFAULTS
from convsmith.tune.devices.device import device_config

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
    others = {name: Config.parse(text) for name, text in OTHERS.items()}
    for row in rows:
        with interning():
            problem = row.problem.canonical()
            config = device_config(problem, machine)
            ways = [*_without(config), *((name, x) for name, x in others.items() if _suits(x, row, machine))]
            legal = [(name, str(x)) for name, x in ways if flaw_within(problem, x, machine) is None]
        yield row._replace(config=str(config))
        yield from (row._replace(name=f"{row.name}, {name}", config=text) for name, text in legal)


def _without(config: Config) -> Iterator[tuple[str, Config]]:
    """Yield words of ``config``, each with the config that has the word's default value in its place."""
    for word in DECISIONS:
        if config.value(word) != DEFAULTS[word]:
            yield f"without {word}", config.changed(**{word: DEFAULTS[word]})
    staged = config.staged("shared")
    kept = tuple(x for x in staged if x not in _RESULTS)
    if kept != staged:
        yield "without results in shared memory", config.changed(shared=kept, store_parts=DEFAULTS["store_parts"])


def _suits(config: Config, row: GpuRow, machine: Machine) -> bool:
    """Return whether another config is one of the machine, with no wider tiles of columns than the layer has."""
    return config.target == machine.name and config.group_size("oc") <= row.problem.oc
