"""Quotients that become bytes, on every level of NVIDIA's GPUs: as exact as a division, and without one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from codegen.test_quotients import POINTS, SCALES, nearest
from natives import assert_same_bits

from convsmith.interp import run as interpret
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.machine.nvidia.levels import LEVELS
from convsmith.machine.registry import target
from ptx.kernels import kernel_ptx, run_kernel

THREADS, EACH = 32, 16
DIVISORS = np.array([*SCALES, 0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1.5 * 2.0**-126, 2.0**-149, 1.9 * 2.0**63, 41,
                     -49, 1.3125], np.float32)  # fmt: skip


def quotients(to: str, lanes: int, is_added: bool) -> Kernel:
    """Return a kernel of which each group divides by one number, and adds one."""
    each = max(lanes, 1)
    place = f"[g * {THREADS * EACH} + i * {THREADS * each} + t * {each}]" + (f"{{{lanes}}}" if lanes else "")
    number = f"[g]{{{lanes}:0}}" if lanes else "[g]"
    size = len(DIVISORS) * THREADS * EACH
    added = f" + cast(f32, z{number})" if is_added else ""
    return parse_kernel(
        f"kernel k(x: f32[{size}], s: f32[{len(DIVISORS)}], z: s32[{len(DIVISORS)}], out: {to}[{size}])\n"
        f"  for g in 0 .. {len(DIVISORS)} #grid:\n"
        f"    for t in 0 .. {THREADS} #group:\n"
        f"      for i in 0 .. {EACH // each}:\n"
        f"        out{place} = cast({to}, x{place} / s{number}{added})\n"
    )


def numerators(points: np.ndarray) -> Iterator[np.ndarray]:
    """Yield for each divisor numbers around the middles between bytes, and those of any size."""
    rng = np.random.default_rng(2)
    for divisor, point in zip(DIVISORS.astype(np.float64), points.astype(np.float64)):
        near = (rng.choice(np.arange(-300, 540), 250) / 2 - point) * divisor
        far = rng.choice([-1, 1], 150) * 2.0 ** rng.uniform(-149, 128, 150)
        odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45])
        some = np.concatenate([near, far, odd]).astype(np.float32)
        beside = np.nextafter(some[:104], np.float32(rng.choice([-np.inf, np.inf])))
        yield np.concatenate([some, beside])


@pytest.mark.sampled(16)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", [x.name for x in LEVELS])
@pytest.mark.parametrize("to", ["u8", "s8"])
@pytest.mark.parametrize(("lanes", "is_added"), [(0, False), (2, False), (4, True)])
def test_quotients_are_exact(to: str, level: str, lanes: int, is_added: bool) -> None:
    kernel = quotients(to, lanes, is_added)
    for first in (0, 3, 7) if is_added else (0,):
        with np.errstate(all="ignore"):
            points = np.resize(np.roll(POINTS, first), len(DIVISORS)).astype(np.int32) * is_added
            given = {"x": np.concatenate([*numerators(points)]), "s": DIVISORS, "z": points}
            given["out"] = np.zeros(len(given["x"]), to.replace("u", "uint").replace("s", "int"))
            found = run_kernel(kernel, target(level), given, seed=0)["out"]
            interpret(kernel, given)
        assert_same_bits(found, given["out"])


@pytest.mark.parametrize("level", [x.name for x in LEVELS])
@pytest.mark.parametrize("lanes", [0, 2])
def test_a_number_has_one_reciprocal(level: str, lanes: int) -> None:
    text = kernel_ptx(quotients("u8", lanes, is_added=True), target(level))
    assert text.count("rcp.approx.ftz.f32") == 1 and "div" not in text
    assert text.count("fma.rn.f32") == 2 + 2 * max(lanes, 1)


def test_branches_share_a_reciprocal() -> None:
    store = "out[t * 2 + {0}]{{2}} = cast(u8, x[t * 2 + {0}]{{2}} / s[0]{{2:0}})"
    kernel = parse_kernel(
        "kernel k(x: f32[128], s: f32[1], out: u8[128])\n  for t in 0 .. 32 #group:\n"
        + "".join(f"    if t >= {n}:\n      {store.format(n)}\n" for n in (0, 3, 64))
    )
    assert kernel_ptx(kernel, target("sm_90a")).count("rcp.approx.ftz.f32") == 1


@pytest.mark.parametrize("step", [16, pytest.param(1, marks=pytest.mark.wide)])
def test_a_reciprocal_is_rounded_once(step: int) -> None:
    """By an approximation within a unit of the last place and two fused steps, for all fractions of a divisor.

    The largest fraction is rounded wrongly if its approximation is too small. Its reciprocal is close to a tie, and the
    approximation of every GPU is large enough: ptxas makes ``rcp.rn`` of the same steps.
    """
    divisors = np.arange((1 << 24) - 1, (1 << 23) - 1, -step, dtype=np.int64)
    rounded = nearest(np.full_like(divisors, 1 << 47), divisors)
    for apart in (-1, 0, 1):
        near = rounded + apart
        error = (1 << 47) - divisors * near
        size = np.abs(error)
        kept = np.sign(error) * np.where(size < 1 << 24, size, nearest(size, np.int64(2)) * 2)  # f32 has 24 bits
        found = near + nearest(near * kept, np.int64(1 << 47))
        wrong = divisors[(found != rounded) & (size < divisors)]
        assert wrong.tolist() == ([(1 << 24) - 1] if apart == -1 else [])
