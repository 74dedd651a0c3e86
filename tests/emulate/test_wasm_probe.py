"""Probes: an engine of WebAssembly shows whether it computes the products of a level."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

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
