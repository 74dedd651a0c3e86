"""Probes: an engine of WebAssembly shows whether it computes the products of a level."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from convsmith.diag.errors import UnsupportedError
from convsmith.emulate import wasm
from convsmith.emulate.wasm import ENGINES, WebAssembly
from convsmith.emulate.wasm_probe import probe_module
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.machine.wasm.instructions import SIGNED_DOTS

DOTS = target("wasm32+dot_u8")
PAIRS = target("wasm32+pairs_u8")


def alternatives(machine: Machine | None) -> list[Machine]:
    """A machine and those that run its kernels with fewer features."""
    return [] if machine is None else [machine, *alternatives(machine.alternative)]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> WebAssembly:
    found = WebAssembly(engine=request.param)
    try:
        found.check(target("wasm32"))
    except UnsupportedError:
        pytest.skip(f"there is no {request.param}")
    return found


def computes(engine: WebAssembly, module: bytes) -> bool:
    if engine.engine == "node":
        return wasm._accepts_in_node(engine.program(), module)
    return wasm._accepts_in_wasmtime(module)


def test_alternatives_have_rows_of_the_same_names() -> None:
    machines = alternatives(DOTS)
    assert [x.needs for x in machines] == [DOTS.needs, SIGNED_DOTS, target("wasm32").needs]
    assert len({tuple(row.name for row in x.instructions) for x in machines}) == 1
    assert len({x.vector_rows("u8", "s8", "s32")[0].llvm for x in machines}) == 3


def test_an_engine_computes_what_it_has(engine: WebAssembly) -> None:
    """All engines compute products of words; a check says whether one computes relaxed products of s8 and s8, and a
    level whether it computes those of s8 and u8: no engine computes both.
    """
    relaxed, plain = alternatives(DOTS)[1:]
    assert computes(engine, probe_module(plain))
    engine.check(plain)
    with nullcontext() if computes(engine, probe_module(relaxed)) else pytest.raises(UnsupportedError, match="dot-s8"):
        engine.check(relaxed)
    (features,) = engine.processors.values()
    assert not (computes(engine, probe_module(DOTS)) and computes(engine, probe_module(relaxed)))
    assert computes(engine, probe_module(DOTS)) == (set(DOTS.needs) <= features)
    assert set(target("wasm32+relaxed").needs) <= features


def test_an_engine_that_computes_other_products_is_found(engine: WebAssembly) -> None:
    """Odd bytes of 128 or more are negative where the shift keeps their sign."""
    plain = alternatives(DOTS)[2]
    row = plain.vector_rows("u8", "s8", "s32")[0]
    other = replace(row, llvm=row.llvm.replace("lshr", "ashr"))
    others = tuple(other if x is row else x for x in plain.instructions)
    assert other != row and not computes(engine, probe_module(replace(plain, instructions=others)))
    unknown = probe_module(plain).replace(b"\xfd\xba\x01", b"\xfd\xff\x7f")
    assert unknown != probe_module(plain) and not computes(engine, unknown)


def test_pairs_of_products_are_probed_within_their_limit(engine: WebAssembly) -> None:
    """An engine that adds pairs of products of s8 and u8 in words saturates the sum of larger ones."""
    first, plain = alternatives(PAIRS)
    assert plain.needs == target("wasm32").needs
    assert len({tuple(row.name for row in x.instructions) for x in (first, plain)}) == 1
    limited = first.vector_rows("u8", "s8", "s32")[0]
    (features,) = engine.processors.values()
    assert limited.limit == 64 and computes(engine, probe_module(PAIRS)) == (set(PAIRS.needs) <= features)
    unlimited = tuple(replace(row, limit=0) for row in PAIRS.instructions)
    assert not computes(engine, probe_module(replace(PAIRS, instructions=unlimited)))


def test_an_engine_without_the_products_does_not_run_their_kernels() -> None:
    class Saturating(WebAssembly):
        @property
        def processors(self) -> dict[str, frozenset[str]]:
            return {"engine": frozenset(target("wasm32+relaxed").needs)}

    with pytest.raises(UnsupportedError, match="dot-u8"):
        Saturating(engine="node").check(DOTS)


def test_products_of_signed_bytes_are_exact_where_pairs_are_added_in_words() -> None:
    """V8 on AArch64 adds pairs of products in words, which wrap, until it compiles a function again."""
    row = alternatives(DOTS)[1].vector_rows("u8", "s8", "s32")[0]
    a, b = (x.ravel() for x in np.meshgrid(np.arange(256), np.arange(-128, 128)))

    def result(wraps: bool) -> Any:
        values: dict[str, Any] = {"a": a.astype(np.uint8).view(np.int8), "b": b.astype(np.int8)}
        values["c"] = np.full(a.shape, 7, np.int32)
        (name,) = row.emit(lambda text: _evaluated(text, values, wraps), {x: (f"%{x}",) for x in "abc"})
        return values[name[1:]]

    for wraps in (True, False):
        np.testing.assert_array_equal(result(wraps), 7 + 4 * a * b)


def _evaluated(text: str, values: dict[str, Any], wraps: bool) -> str:
    """Compute an expression on the bytes, or on the sum of four equal products, of each pair of factors; return its
    name.
    """
    given = [
        values[name] if name else np.full(values["a"].shape, int(number or 0), np.int8 if number else np.int32)
        for name, number in re.findall(r"%(\w+)|splat \(i8 (-?\d+)\)|zeroinitializer", text)
    ]
    operation = text.partition(" ")[0]
    if operation == "call":
        pair = 2 * given[0].astype(np.int32) * given[1]
        found = given[2] + 2 * (pair.astype(np.int16).astype(np.int32) if wraps else pair)
    else:
        found = {"xor": np.bitwise_xor, "or": np.bitwise_or, "and": np.bitwise_and, "add": np.add}[operation](*given)
    values[name := f"v{len(values)}"] = found
    return f"%{name}"
