"""The predicate that tells whether a config makes a kernel, against the plan: the same verdict and the same message.

The configs are drawn: steps along dimensions of the spaces of drawn problems, on every kind of machine, and decisions
that no dimension makes. The predicate determines no rewrite of a kernel, and the plan of a config that it accepts meets
no further error.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from tune.test_drawn_points import ALL_KINDS, draw

from convsmith.diag.errors import ConfigError, UnsupportedError
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.problem.problem import Problem
from convsmith.schedule import kernel
from convsmith.schedule.config import Config
from convsmith.schedule.plan import flaw, plan
from convsmith.tune.search.config_space import ConfigSpace
from convsmith.tune.search.device_space import space_of

STRANGE = (
    {"pack": ("src", "wei")}, {"pack": ("diff_dst",)}, {"pack": ()}, {"realise": "pad_copy"},
    {"realise": "pad_copy", "restrict": ("kh",)},
    {"realise": "indirection"}, {"realise": "hardware"}, {"realise": "window_copy"}, {"instruction": "none"},
    {"offsets": "sums"},
    {"resident": ("wei",)}, {"stream": ("src",)}, {"shared": ("src",)}, {"pack_at": (("src", "ow"),)},
    {"preload": ("bia",)}, {"lane": "ic"}, {"split": (("mb", 2),)}, {"cache": (("kh", 1),)}, {"buffers": 2},
)  # fmt: skip
"""Decisions that most configs do not permit."""
DRAWS, POINTS = 8, 10
"""Problems of each kind, and configs of each problem."""
RECORDERS = ((kernel, "pipeline_of"),)
"""The functions that determine the rewrites of kernels."""


def verdict(problem: Problem, config: Config, machine: Machine) -> str:
    """Return the message of the error that planning ``config`` raises, or an empty text."""
    try:
        plan(problem, config, machine)
    except ConfigError as error:
        return f"{error.code}: {error.message}"
    return ""


def configs(of: ConfigSpace, rng: random.Random) -> Iterator[Config]:
    """Yield configs of a space and beside it, legal or not."""
    known = list(of.seeds[:4])
    for _ in range(POINTS):
        near = sorted(of.neighbours(rng.choice(known), rng.choice(of.dimensions)), key=str)
        known += rng.sample(near, min(len(near), 1))
        try:
            yield rng.choice(known).changed(**rng.choice(STRANGE))
        except ConfigError:  # values of a config that contradict each other
            continue
    yield from known


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_predicate_has_the_verdict_and_the_message_of_the_plan(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: Counter[str] = Counter()
    for number in range(DRAWS):
        rng, problem, machine, threads = draw(kind, number)
        with interning():
            try:
                of = space_of(problem, machine, threads)
            except (ConfigError, UnsupportedError):
                continue
            for config in configs(of, rng):
                with monkeypatch.context() as patch:
                    for module, recorder in RECORDERS:
                        patch.setattr(module, recorder, None)
                    try:
                        error = flaw(problem, config, machine)
                    except UnsupportedError:
                        continue
                said = "" if error is None else f"{error.code}: {error.message}"
                assert said == verdict(problem, config, machine), f"{machine.name} {problem}\n{config}"
                found[said.partition(":")[0]] += 1
    assert found[""] >= DRAWS and len(found) >= 5, found


def test_a_step_of_a_space_asks_the_predicate_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal has the code of the error, and counts once."""
    problem = parse_problem("--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb2ic64ih8oc64oh8kh3ph1").canonical()
    with interning():
        _, _, machine, _ = draw("layers on devices", 0)
        of = space_of(problem, machine, 1)
        for module, recorder in RECORDERS:
            monkeypatch.setattr(module, recorder, None)
        wrong = of.seeds[0].changed(order=("none",))
        assert [of.refusal(wrong), of.refusal(wrong)] == ["unknown-loop"] * 2
        assert of.refused["unknown-loop"] == 1


@pytest.mark.parametrize("loops", ["--reduce=kh_kw_ic --k_step=kh_kw_ic:64", "--reduce=kh,kw_ic --k_step=kh_kw_ic:64"])
def test_loops_are_known_before_an_instruction_is_fitted_to_them(loops: str) -> None:
    problem = parse_problem("--dt=u8:s8:u8 --stag=axb --dtag=axb mb1ic32iw64oc16kw7pw3").canonical()
    words = "--lane=oc --fuse=kw+ic --register=ow:64,oc:16 --order=mb,oh,ow,oc --instruction=tdpbusd_16"
    config = Config.parse(f"--target=avx512_amx {words} {loops} --realise=window_copy")
    with interning(), pytest.raises(ConfigError, match="config names loop 'kh_kw_ic'"):
        plan(problem, config, next(t for t in LEVELS if t.name == "avx512_amx"))
