"""Values as machine code, on every level of this machine, against the interpreter bit for bit."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from natives import assert_same_bits, computed, elementwise_kernel, interpreted, llvm_text, mnemonics, run_native

from convsmith.diag.errors import InternalError
from convsmith.interp import run
from convsmith.ir.instruction import Instruction, vector
from convsmith.ir.parse import parse_kernel
from convsmith.ir.types import DTYPES
from convsmith.ir.value import COMPARISONS
from convsmith.machine.base import Machine
from convsmith.machine.generic.level import level
from convsmith.machine.registry import host_targets
from convsmith.machine.x86.levels import LEVELS

TARGETS = host_targets()
EACH_TARGET = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)

SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 1e30, -1e30, 1e-40, 8388608.5, 3.0)
SYMBOLS = ("<", "<=", ">", ">=", "==", "!=")
COMPUTING = [name for name, row in DTYPES.items() if row.computes]
FLOATS = [name for name in COMPUTING if DTYPES[name].kind == "float"]
INTEGERS = [name for name in COMPUTING if name not in FLOATS]


def typed(names: list[str]) -> pytest.MarkDecorator:
    """Each type on each level; f16 on levels that convert it, where LLVM widens its arithmetic when asked for some."""
    found = []
    for target in TARGETS:
        for name in names:
            if name != "f16" or target.half:
                t = replace(target, half="computes") if name == "f16" else target
                found.append(pytest.param(name, t, id=f"{name}-{t.name}"))
    return pytest.mark.parametrize(("name", "target"), found)


def pairs(name: str) -> dict[str, np.ndarray]:
    """Every special number with every other, or the ends of an integer type and what is random in between."""
    row = DTYPES[name]
    if row.kind == "float":
        a, b = np.meshgrid(SPECIAL, SPECIAL)
    else:
        low, high = row.limits
        ends = np.array([low, low + 1, 0, 1, 3, high // 2, high - 1, high])
        a, b = np.meshgrid(ends, ends)
    with np.errstate(over="ignore"):
        return {"a": a.ravel().astype(row.numpy), "b": b.ravel().astype(row.numpy)}


def both(text: str, inputs: dict[str, np.ndarray], out: str, target: Machine) -> None:
    expected = interpreted(text, inputs, out, 0)
    for lanes in (0, 16):
        assert_same_bits(computed(text, inputs, out, lanes, target), expected)


@pytest.mark.sampled(8, "name")
@typed(COMPUTING)
def test_comparisons(name: str, target: Machine) -> None:
    assert len(SYMBOLS) == len(COMPARISONS)
    for symbol in SYMBOLS:
        both(f"where(a@ {symbol} b@, s8(1), s8(0))", pairs(name), "s8", target)
        both(f"where(b@ {symbol} a@, a@, b@)", pairs(name), name, target)


@pytest.mark.sampled(3, "op+name", "target")
@typed(FLOATS)
@pytest.mark.parametrize("op", ["round", "floor", "sqrt", "abs", "neg", "max", "min"])
def test_operations_on_floats(op: str, name: str, target: Machine) -> None:
    both(f"{op}(a@, b@)" if op in ("max", "min") else f"{op}(a@)", pairs(name), name, target)


@pytest.mark.sampled(3, "name", "target")
@typed(FLOATS)
def test_arithmetic_on_floats(name: str, target: Machine) -> None:
    for op in "+-*/":
        both(f"a@ {op} b@", pairs(name), name, target)


@pytest.mark.parametrize("text", ["a@ + b@", "max(a@, b@)", "fma(a@, b@, a@)", "where(a@ < b@, a@, b@)", "neg(a@)"])
def test_arithmetic_on_f16_needs_a_target_that_has_it(text: str) -> None:
    with pytest.raises(InternalError, match="the target has no arithmetic on f16"):
        computed(text, pairs("f16"), "f16", 0, level())


@pytest.mark.sampled(6, "name")
@EACH_TARGET
@pytest.mark.parametrize("name", INTEGERS)
def test_operations_on_integers(name: str, target: Machine) -> None:
    width = DTYPES[name].bits
    texts = [f"{op}(a@, b@)" for op in ("and", "or", "xor", "max", "min")] + [f"a@ {op} b@" for op in "+-*"]
    texts += [f"{op}(a@, {name}({n}))" for op in ("shl", "shr") for n in (0, 1, 5, width - 1)]
    for text in texts:
        both(text, pairs(name), name, target)


@pytest.mark.sampled(2)
@EACH_TARGET
def test_high_products(target: Machine) -> None:
    both("mulh(a@, b@)", pairs("s32"), "s32", target)
    numbers = {"a": np.random.default_rng(0).integers(-(2**31), 2**31, 64).astype(np.int32)}
    for factor in (-(2**31), 2**31 - 1, 1 << 30, 1518500250, -3):
        both(f"mulh(a@, s32({factor}))", numbers, "s32", target)
        both(f"mulh(s32({factor}), a@)", pairs("s32") | numbers, "s32", target)


@EACH_TARGET
@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 6, 7, 9, 15])
def test_high_products_of_any_number_of_lanes(lanes: int, target: Machine) -> None:
    numbers = np.random.default_rng(lanes).integers(-(2**31), 2**31, (2, 2 * lanes)).astype(np.int32)
    inputs = dict(zip("ab", numbers))
    found = computed("mulh(a@, b@)", inputs, "s32", lanes, target)
    assert_same_bits(found, interpreted("mulh(a@, b@)", inputs, "s32", 0))


@EACH_TARGET
def test_a_high_product_is_two_products_of_words(target: Machine) -> None:
    if target.vector_bits < 256:
        return
    kernel = elementwise_kernel("mulh(a@, b@)", {"a": "s32", "b": "s32", "out": "s32"}, 64, target.vector_bits // 32)
    assert mnemonics(kernel, target).count("vpmuldq") == 2


@EACH_TARGET
@pytest.mark.parametrize("op", ["shl", "shr"])
def test_shifts_by_numbers_of_an_array(op: str, target: Machine) -> None:
    a = np.random.default_rng(0).integers(-(2**31), 2**31, 64).astype(np.int32)
    both(f"{op}(a@, b@)", {"a": a, "b": np.arange(64, dtype=np.int32) % 32}, "s32", target)


@EACH_TARGET
@pytest.mark.parametrize(
    ("of", "to"),
    [("f32", "s32"), ("s32", "f32"), ("f16", "s16"), ("s16", "bf16"), ("u8", "s8"), ("bf16", "f16"), ("f64", "f64")],
)
def test_bits(of: str, to: str, target: Machine) -> None:
    both(f"bits({to}, a@)", {"a": pairs(of)["a"]}, to, target)


@pytest.mark.sampled(12, "target")
@EACH_TARGET
@pytest.mark.parametrize("name", DTYPES)
def test_repeat(name: str, target: Machine) -> None:
    a = np.arange(1, 33).astype(DTYPES[name].numpy)
    for lanes, times in ((1, 4), (2, 2), (2, 8), (4, 1), (4, 16), (8, 2), (3, 4)):
        for active in {lanes, lanes // 2}:
            n = lanes * times
            value = f"repeat(a[5]{{{lanes}/{active}}}, {times})"
            text = f"kernel k(a: {name}[32], out: {name}[{n}])\n  out[0]{{{n}}} = {value}"
            out = np.zeros(n, a.dtype)
            run_native(parse_kernel(text), {"a": a, "out": out}, target)
            one = np.where(np.arange(lanes) < active, a[5 : 5 + lanes], np.zeros((), a.dtype))
            assert_same_bits(out, np.tile(one.astype(a.dtype), times))
    out = np.zeros(4, a.dtype)
    run_native(
        parse_kernel(f"kernel k(a: {name}[32], out: {name}[4])\n  out[0]{{4}} = repeat(a[3], 4)"),
        {"a": a, "out": out}, target,
    )  # fmt: skip
    assert_same_bits(out, np.full(4, a[3]))


@pytest.mark.sampled(6, "lanes", "group", "name", "target")
@typed(COMPUTING)
@pytest.mark.parametrize(("lanes", "group"), [(16, 4), (16, 16), (16, 1), (8, 2), (12, 4), (2, 2)])
def test_grouped_sums(lanes: int, group: int, name: str, target: Machine) -> None:
    """In the interpreter's order of addition, which shows in the last places."""
    n = lanes // group
    place = f"{{{n}}}" if n > 1 else ""
    kernel = parse_kernel(f"kernel k(a: {name}[16], out: {name}[{n}])\n  out[0]{place} = sum(a[0]{{{lanes}}}, {group})")
    numbers = np.random.default_rng(0).normal(0, 40, 16)
    arrays = {
        "a": numbers.astype(np.int8).astype(DTYPES[name].numpy)
        if name in INTEGERS
        else numbers.astype(name.replace("f", "float"))
    }
    expected, found = (arrays | {"out": np.zeros(n, DTYPES[name].numpy)} for _ in range(2))
    run(kernel, expected)
    run_native(kernel, found, target)
    assert_same_bits(found["out"], expected["out"])


@pytest.mark.sampled(4)
@EACH_TARGET
@pytest.mark.parametrize("count", range(2, 9))
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_sums_of_any_number_of_vectors(lanes: int, count: int, target: Machine) -> None:
    """Each sum has the lane of its number, also beside the absent sums that round their number up to a power of two."""
    if count > lanes:
        return
    sums = ", ".join(f"a[{n * 16}]{{{lanes}}}" for n in range(count))
    kernel = parse_kernel(f"kernel k(a: f32[128], out: f32[{count}])\n  out[0]{{{count}}} = sums({sums})\n")
    a = np.random.default_rng(0).normal(0, 40, 128).astype(np.float32)
    expected, found = ({"a": a, "out": np.zeros(count, np.float32)} for _ in range(2))
    run(kernel, expected)
    run_native(kernel, found, target)
    assert_same_bits(found["out"], expected["out"])


@pytest.mark.sampled(4, "types", "lanes", "target")
@EACH_TARGET
@pytest.mark.parametrize("lanes", [8, 16, 32, 64])
@pytest.mark.parametrize("types", ["u8 s8", "s8 u8", "s8 s8", "u8 u8"])
def test_sums_of_products_of_bytes(types: str, lanes: int, target: Machine) -> None:
    """LLVM makes its own of them: sums of all lanes, of groups, and several at once."""
    a, b = types.split()
    rng = np.random.default_rng(0)
    arrays = {"a": rng.integers(0, 120, 128).astype(DTYPES[a].numpy), "b": rng.integers(0, 120, 128)}
    arrays["b"] = (arrays["b"] - (50 if b == "s8" else 0)).astype(DTYPES[b].numpy)
    term, other = (f"cast(s32, a[{n}]{{{lanes}}}) * cast(s32, b[{64 - n}]{{{lanes}}})" for n in (0, 64))
    for text in (
        f"out[0] = sum({term})",
        f"out[0]{{2}} = sums({term}, {other})",
        f"out[0]{{2}} = sum({term}, {lanes // 2})",
    ):
        kernel = parse_kernel(f"kernel k(a: {a}[128], b: {b}[128], out: s32[2])\n  {text}\n")
        expected, found = (arrays | {"out": np.zeros(2, np.int32)} for _ in range(2))
        run(kernel, expected)
        run_native(kernel, found, target)
        assert_same_bits(found["out"], expected["out"])


@pytest.mark.parametrize("target", LEVELS, ids=lambda t: t.name)
def test_repeated_bytes_are_one_broadcast(target: Machine) -> None:
    n = target.vector_bits // 8
    kernel = parse_kernel(f"kernel k(a: s8[4], out: s8[{n}])\n  out[0]{{{n}}} = repeat(a[0]{{4}}, {n // 4})")
    names = [x for x in mnemonics(kernel, target) if x.startswith("v") and x != "vzeroupper"]
    assert len(names) == 2 and "broadcast" in names[0] and names[1].startswith("vmov"), names


@EACH_TARGET
def test_operands_of_an_instruction_may_repeat(target: Machine) -> None:
    row = target.instructions[0]
    n = row.lanes
    text = (
        f"kernel k(a: f32[{n}], b: f32[2], out: f32[{n}])\n  alloc c: f32[{n}] @register:\n"
        f"    c[0]{{{n}}} = 1.0\n    {row.name}(c[0]{{{n}}}, a[0]{{{n}}}, repeat(b[0]{{2}}, {n // 2}))\n"
        f"    out[0]{{{n}}} = c[0]{{{n}}}"
    )
    a = np.arange(n, dtype=np.float32)
    arrays = {"a": a, "b": np.array([3, -5], np.float32), "out": np.zeros(n, np.float32)}
    run_native(parse_kernel(text), arrays, target)
    np.testing.assert_array_equal(arrays["out"], 1 + a * np.resize([3, -5], n))


@EACH_TARGET
def test_quotients_by_variables_round_down(target: Machine) -> None:
    text = (
        "kernel k(a: f32[32], out: f32[81])\n  for x in 0 .. 9:\n    for y in 1 .. 10:\n"
        "      out[x * 9 + y - 1] = a[(x * 3 - 14) // y + 16]"
    )
    arrays = {"a": np.arange(32, dtype=np.float32), "out": np.zeros(81, np.float32)}
    run_native(parse_kernel(text), arrays, target)
    assert arrays["out"].tolist() == [(x * 3 - 14) // y + 16 for x in range(9) for y in range(1, 10)]


def test_what_occurs_twice_is_computed_once() -> None:
    text = (
        "kernel k(a: f32[8], out: f32[8])\n  alloc r: f32[] @register:\n    r[] = a[0]\n"
        "    r[] = sqrt(r[]) * sqrt(r[]) + (sqrt(r[]) if 1 - 1 == 0 else sqrt(a[1]))\n"
        "    r[] = sqrt(r[]) + (sqrt(a[2]) if 1 - 1 == 0 else sqrt(a[2])) + sqrt(a[2])\n    out[0] = r[]"
    )
    text = text.replace("1 - 1 == 0", "x == 0").replace("  alloc", "  for x in 0 .. 1: alloc")
    kernel = parse_kernel(text)
    arrays = {"a": np.array([16, 9, 25, 0, 0, 0, 0, 0], np.float32), "out": np.zeros(8, np.float32)}
    expected = {k: x.copy() for k, x in arrays.items()}
    run(kernel, expected)
    # sqrt(r) before the branch, sqrt(a[1]) in an arm; then sqrt(r) anew, and sqrt(a[2]) in each arm and after them.
    assert len(re.findall("call float @llvm.sqrt", llvm_text(kernel, TARGETS[0]))) == 6
    for target in TARGETS:
        found = {k: x.copy() for k, x in arrays.items()}
        run_native(kernel, found, target)
        assert_same_bits(found["out"], expected["out"])


@pytest.mark.parametrize("active", [1, 3, 4])
def test_a_predicate_is_the_mask_of_the_active_lanes(active: int) -> None:
    type_ = "<4 x float>"
    row = Instruction(
        "masked", tuple(vector(x, "f32", 4) for x in "cab"),
        "  for l in 0 .. 4:\n    if l < active:\n      c[l] = fma(a[l], b[l], c[l])\n",
        f"call {type_} @llvm.fma.v4f32({type_} {{a}}, {type_} {{b}}, {type_} {{c}})\n"
        f"select <4 x i1> {{active}}, {type_} {{0}}, {type_} {{c}}",
        f"declare {type_} @llvm.fma.v4f32({type_}, {type_}, {type_})", (), "", "active",
    )  # fmt: skip
    kernel = parse_kernel(
        "kernel k(a: f32[4], out: f32[4])\n  alloc c: f32[4] @register:\n    c[0]{4} = 1.0\n"
        f"    masked(c[0]{{4/{active}}}, a[0]{{4}}, a[0]{{4}})\n    out[0]{{4}} = c[0]{{4}}"
    )
    arrays = {"a": np.array([2, 3, 4, 5], np.float32), "out": np.zeros(4, np.float32)}
    interpreted = {name: x.copy() for name, x in arrays.items()}
    run(kernel, interpreted, {row.name: row.kernel})
    run_native(kernel, arrays, replace(level(), instructions=(row,)))
    np.testing.assert_array_equal(arrays["out"], interpreted["out"])
    np.testing.assert_array_equal(arrays["out"], np.where(np.arange(4) < active, arrays["a"] ** 2 + 1, 1))
