"""Each step in s32 arithmetic: the interpreter and machine code against numpy, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from natives import assert_same_bits, run_native

from convsmith.interp import run
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Var, as_index
from convsmith.ir.stmt import For, Kernel, Store
from convsmith.ir.types import S32, dtype
from convsmith.ir.value import Load, Value, strided
from convsmith.ir.verify import verify
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets
from convsmith.problem.integer_steps import INTEGER_STEPS, LIMITS
from convsmith.statement.integer_steps import _STEPS, integer_step

LANES = 16
NUMBERS: dict[str, list[tuple[int, ...]]] = {
    "s32_rescale": [(65025, 1), (65025, 105), (65025, 255 * 127), (3, 7)],
    "s32_tanh": [(0, 1), (3, 100), (-7, 32767), (1 << 20, 1 << 27)],
}


def values() -> np.ndarray:
    rng = np.random.default_rng(0)
    ends = [*LIMITS, LIMITS[0] + 1, LIMITS[1] - 1, *range(-20, 21), 1 << 30, -(1 << 30), 3 << 29, -(3 << 29)]
    ends += [rng.integers(-500, 500) for _ in range(50)] + [rng.integers(-300_000, 300_000) for _ in range(50)]
    rest = rng.integers(*LIMITS, 512 - len(ends), endpoint=True)
    return np.concatenate([ends, rest]).astype(np.int32)


def operands(alg: str) -> list[float]:
    low, high = INTEGER_STEPS[alg].limits[0]
    if INTEGER_STEPS[alg].dtype == "f32":
        ties, odd = [0.5, 0.25, -0.5, 1.5, 2.0**-31], [1 / 3, 0.1, 0.9999999, 1e-3, -0.7, 12345.678, 1e-40, 1e30]
        ties.append(0.5 + 2.0**-24)  # times the largest x: so little below a tie that a double rounds it to one
        return [float(np.float32(n)) for n in (low, 0, 1, *ties, *odd, high)]
    some = [low, low + 1, 0, 1, 2, 5, 7, 127, -128, 1 << 30, 1518500250, high - 1, high]
    return sorted({n for n in some if low <= n <= high})


def array_of_operands(alg: str, size: int) -> np.ndarray:
    return np.resize(INTEGER_STEPS[alg].operand(operands(alg)), size).astype(dtype(INTEGER_STEPS[alg].dtype).numpy)


def kernel(alg: str, numbers: tuple[float, ...], size: int, lanes: int) -> Kernel:
    types = {"y": dtype(INTEGER_STEPS[alg].dtype)}
    x, y, out = (make_buffer(name, types.get(name, S32), (size,)) for name in ("x", "y", "out"))
    i = Var("i")
    place = (i * lanes if lanes else i,)
    wide = strided(lanes, 1) if lanes else None
    given: tuple[Value | float, ...] = numbers or (Load(y, place, wide),)
    store = Store(out, place, integer_step(alg, Load(x, place, wide), *given), wide)
    return Kernel("k", (x, y, out), For(i, as_index(0), as_index(size // max(lanes, 1)), store))


def test_every_step_has_a_row() -> None:
    assert _STEPS.keys() == INTEGER_STEPS.keys()


@pytest.mark.sampled(9)
@pytest.mark.parametrize("alg", INTEGER_STEPS)
def test_interpreted(alg: str) -> None:
    x = values()[:: 4 if alg == "s32_tanh" else 1]
    for numbers in NUMBERS.get(alg) or [(n,) for n in operands(alg)]:
        k = kernel(alg, numbers, len(x), 0)
        verify(k)
        out = np.zeros_like(x)
        run(k, {"x": x, "y": array_of_operands(alg, len(x)), "out": out})
        assert_same_bits(out, INTEGER_STEPS[alg].apply(x.astype(np.int64), *numbers).astype(np.int32))


@pytest.mark.parametrize("alg", [alg for alg in INTEGER_STEPS if alg not in NUMBERS])
def test_numbers_from_an_array(alg: str) -> None:
    x, row = values(), INTEGER_STEPS[alg]
    y = array_of_operands(alg, len(x))
    out = np.zeros_like(x)
    run(kernel(alg, (), len(x), LANES), {"x": x, "y": y, "out": out})
    assert_same_bits(out, row.apply(x.astype(np.int64), row.operand(y)).astype(np.int32))


@pytest.mark.sampled(16, wide=1, every="alg target")
@pytest.mark.parametrize("target", host_targets(), ids=lambda t: t.name)
@pytest.mark.parametrize("alg", INTEGER_STEPS)
def test_machine_code(alg: str, target: Machine) -> None:
    x = values()
    few = NUMBERS.get(alg) or [(n,) for n in operands(alg)[::3]]
    y = array_of_operands(alg, len(x))
    for numbers in [*few, *([()] if alg not in NUMBERS else [])]:
        for lanes in (0, LANES):
            out = np.zeros_like(x)
            run_native(kernel(alg, numbers, len(x), lanes), {"x": x, "y": y, "out": out}, target)
            given = numbers or (INTEGER_STEPS[alg].operand(y),)
            assert_same_bits(out, INTEGER_STEPS[alg].apply(x.astype(np.int64), *given).astype(np.int32))
