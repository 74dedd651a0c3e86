"""Levels: the order in which they are tried, what they have, and which row serves which types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from convsmith.diag.errors import UnsupportedError
from convsmith.ir.instruction import RegisterFile
from convsmith.ir.types import DTYPES
from convsmith.machine import registry
from convsmith.machine.aarch64.levels import LEVELS as AARCH64
from convsmith.machine.base import Machine, dot, fragment_dot, multiply_add
from convsmith.machine.generic.level import level
from convsmith.machine.intel_gpu.fragments import HALVES
from convsmith.machine.x86.levels import LEVELS
from convsmith.schedule.config_rows import CONFIG_ROWS

BYTES = ("u8", "s8", "s32")
FRAGMENTS = [fragment_dot(f"fragment_{k}", (2, k, 16, 4), BYTES, "", "", (), "") for k in (2, 8, 4)]


def with_rows(*rows: object) -> Machine:
    return replace(level(), vectors=RegisterFile("vector", 32, 512), instructions=rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", LEVELS, ids=lambda t: t.name)
def test_a_vector_of_every_level_is_full(target: Machine) -> None:
    """Every row fills a vector of sums; of each type there are as many lanes as a vector holds."""
    for row in target.instructions:
        assert row.lanes * DTYPES[row.types[2]].bits == target.vector_bits, row.name
    assert [target.lanes(bits) for bits in (8, 16, 32, 64)] == [target.vector_bits // n for n in (8, 16, 32, 64)]


@pytest.mark.parametrize("target", LEVELS, ids=lambda t: t.name)
def test_a_level_has_what_its_rows_need(target: Machine) -> None:
    for row in (*target.instructions, *target.transpositions):
        assert set(row.needs) <= set(target.needs), row.name
    assert set(target.features.split(",")) == {f"+{name}" for name in (*target.needs, "fast-dpwssd")}


@pytest.mark.parametrize("target", [*LEVELS, level()], ids=lambda t: t.name)
def test_operands_fit_the_registers_of_their_file(target: Machine) -> None:
    files = {x.name: x for x in (target.vectors, *target.fragments)}
    for row in (*target.instructions, *target.transpositions):
        for x in row.operands:
            bits = x.layout.lanes * x.layout.elements * DTYPES[x.dtype].bits
            assert bits <= files[x.file].bits, f"{row.name}: {x} is {bits} bits in {files[x.file]}"


def test_a_level_comes_before_those_that_it_contains() -> None:
    for n, target in enumerate(LEVELS):
        for later in LEVELS[n + 1 :]:
            assert not set(target.needs) < set(later.needs), (target.name, later.name)


def test_fragments_of_most_terms_come_first() -> None:
    target = with_rows(*FRAGMENTS)
    assert [row.terms for row in target.fragment_rows(*BYTES)] == [32, 16, 8]


def test_a_row_of_vectors_is_none_of_fragments() -> None:
    vector = dot("dot", 16, 4, BYTES, "", "", (), "")
    target = with_rows(*FRAGMENTS, vector)
    assert target.row(*BYTES) is vector and vector not in target.fragment_rows(*BYTES)
    assert with_rows(*FRAGMENTS).row(*BYTES) is None


def test_the_nearest_row_adds_most_products() -> None:
    """Signed bytes may become unsigned ones where that row adds more; other types are converted to that of sums."""
    plain, words = multiply_add("fma", 16, "", "", (), ""), dot("words", 16, 2, ("s8", "s8", "s32"), "", "", (), "")
    whole = multiply_add("mul", 16, "", "", (), "", "s32")
    four = dot("four", 16, 4, BYTES, "", "", (), "")
    assert with_rows(plain, words, four).nearest("s8", "s8", "s32") is four
    assert with_rows(plain, words).nearest("s8", "s8", "s32") is words
    assert with_rows(plain, words, whole).nearest("u8", "u8", "s32") is whole
    assert with_rows(plain).nearest("bf16", "bf16", "f32") is plain
    assert with_rows(four).nearest("f32", "f32", "f32") is None


def changed(value: Any) -> Iterator[Any]:
    """Yield the value with each of its numbers, texts and functions changed, one at a time and at any depth."""
    if is_dataclass(value):
        for f in fields(value):
            for other in changed(getattr(value, f.name)):
                yield replace(value, **{f.name: other})
    elif isinstance(value, tuple):
        yield (*value, "more")
        for n, item in enumerate(value):
            yield from ((*value[:n], other, *value[n + 1 :]) for other in changed(item))
    elif callable(value):
        yield changed
    else:
        yield f"{value}+" if isinstance(value, str) else not value if isinstance(value, bool) else (value or 0) + 1


def test_a_machine_with_any_other_fact_has_another_key() -> None:
    """A level that has everything: fragments, transpositions, attributes."""
    whole = next(t for t in LEVELS if t.fragments)
    machine = replace(whole, instructions=whole.instructions[-2:], transpositions=whole.transpositions[:1])
    others = list(changed(machine))
    assert {f.name for f in fields(machine)} == {
        f.name for f in fields(machine) if any(getattr(o, f.name) != getattr(machine, f.name) for o in others)
    }
    assert len({machine.key, *(o.key for o in others)}) == 1 + len(others) > 100
    assert replace(machine).key == machine.key


def test_caches_of_the_levels() -> None:
    """Lines at the distance of a way fall into one set; a part of a cache is for data that passes through."""
    target = next(t for t in LEVELS if t.name == "avx512")
    assert (target.l1.bytes, target.l1.way, target.l1.kept) == (32 << 10, 4096, 16 << 10)
    assert (target.l2.bytes, target.l2.kept) == (1 << 20, 256 << 10)
    assert (target.load(target.l1), target.load(target.l2)) == (1.0, 2.0)


def test_levels_of_tiles_are_decided_by_the_config() -> None:
    """A level whose tiles a memory or registers hold is a level of a config's tiles with its name."""
    for target in (*LEVELS, level()):
        assert [x.name for x in target.levels] == ["thread", "cache", "register", "instruction"]
        held = {x.name: x.holders for x in target.levels if x.holders}
        assert held == {"cache": target.memories, "register": target.register_files}
        assert held.keys() <= {row.name for row in CONFIG_ROWS.values() if row.kind == "level"}
        assert len(target.register_files) == 1 + len(target.fragments)


def test_a_level_with_vectors_of_any_length_is_chosen_by_its_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    have = tuple(t for t in AARCH64 if not {"sve256", "sve512", "sme512", "sme2"} & {*t.needs})
    assert have[0].vectors.scalable
    monkeypatch.setattr(registry, "host_targets", lambda: have)
    assert registry.target().name == "aarch64+i8mm"
    assert registry.target(None, ("f32", "f32", "f32")).name == "aarch64"
    assert registry.target("aarch64+sve").vectors.scalable


def test_multiply_adds_on_fragments_are_as_fast_as_on_numbers() -> None:
    """Other instructions on fragments do as many more products as their factors are shorter."""
    machine = registry.target("xe_hpc")
    rates = {row.name: machine.fragment_rate(row) for row in machine.instructions if row.result.scope == "fragment"}
    assert (rates["mad_m8n16k16_f32"], rates["dpas_m8n16k16_bf16"], rates["dpas_m8n16k32_s8"]) == (1, 16, 32)
    for name in ("xe_hpc", "xe_hpg", "xe_lp"):
        target = registry.target(name)
        assert target.device is not None
        of_rows = {x for row in target.rows.values() for x in row.needs}
        assert of_rows | {HALVES} == set(target.needs)  # conversions of f16 are no rows


@pytest.mark.parametrize("name", ["amdgcn-amd-amdhsa", "gfx942"])
def test_a_machine_without_a_level_says_what_one_would_need(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"^there is no level for {name}: AMD's GPUs need rows .*v_mfma"):
        registry.target(name)
