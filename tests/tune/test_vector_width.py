"""The level of a kernel has vectors of half the length where they leave fewer lanes empty and multiply as fast."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import convsmith as cs
from convsmith.compiler.cache import CacheWarning, cache_key, disk_cache
from convsmith.diag.settings import settings
from convsmith.machine import registry
from convsmith.machine.base import Machine
from convsmith.machine.generic.level import level
from convsmith.machine.micro_architectures import named
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.tune import vector_width
from convsmith.tune.vector_width import level_of, machine_of

F32 = ("f32", "f32", "f32")
FEW = "--stag=axb --dtag=axb mb1ic96ih56oc24oh56kh1ph0"
"""Channels of which vectors of 16 lanes leave a quarter empty, and vectors of 8 lanes none."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    vector_width._is_faster.cache_clear()
    with settings.scope(cache=tmp_path / "cache", micro_architecture="znver4"):
        yield
    vector_width._is_faster.cache_clear()


@pytest.fixture
def every_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine have every level of x86."""
    hosts = {name: (*map(named(name).of, LEVELS), level()) for name in ("znver3", "znver4", "znver5", "intel-server")}
    monkeypatch.setattr(registry, "_host_targets", lambda name: hosts[name])
    monkeypatch.setattr(registry, "_halved", registry._halved.__wrapped__)
    monkeypatch.setattr(registry, "_lowest", registry._lowest.__wrapped__)


def _wide() -> Machine:
    return registry.target("avx512")


@pytest.mark.usefixtures("every_level")
def test_short_vectors_multiply_as_fast_where_long_ones_are_split() -> None:
    found = {}
    for name in ("znver4", "znver5", "intel-server"):
        with settings.scope(micro_architecture=name):
            short = registry.halved(_wide(), F32)
            found[name] = None if short is None else (short.name, short is registry.target("avx2"))
    assert found == {"znver4": ("avx2", True), "znver5": None, "intel-server": None}
    assert registry.halved(registry.target("avx2"), F32) is None
    assert registry.halved(_wide().with_cold_weights, F32) is None, "it is no level of this machine"
    assert registry.halved(registry.target("avx512_amx"), ("u8", "s8", "s32")) is None, "it has products of tiles"
    assert registry.halved(_wide(), ("f16", "f16", "f32")) is None, "factors are converted"


@pytest.mark.usefixtures("every_level")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (FEW, "avx2"),
        ("--dir=BWD_D --stag=axb --dtag=axb mb1ic24ih56oc96oh56kh1ph0", "avx2"),
        ("--stag=axb --dtag=axb mb1ic96ih56oc32oh56kh1ph0", "avx512"),
        ("--stag=axb --dtag=axb mb1ic96ih56oc28oh56kh1ph0", "avx512"),
        ("--dir=BWD_W --stag=axb --dtag=axb mb1ic96ih56oc24oh56kh1ph0", "avx512"),
        ("--stag=axb --dtag=axb mb0ic96ih56oc24oh56kh1ph0", "avx512"),
        ("--stag=aBx16b --dtag=aBx16b mb1ic96ih56oc24oh56kh1ph0", "avx2"),
        ("--stag=aBx16b --dtag=aBx16b mb16ic96ih56oc24oh56kh1ph0", "avx512"),
        ("--matmul 512x256:256x24", "avx2"),
        ("--matmul 512x256:256x32", "avx512"),
    ],
)
def test_the_level_by_the_lanes_that_channels_leave_empty(line: str, expected: str) -> None:
    assert level_of(parse_problem(line), _wide()).name == expected


@pytest.mark.usefixtures("every_level")
def test_the_model_decides() -> None:
    """A transform with long vectors takes fewer cycles than one with short vectors that leave no lane empty."""
    assert level_of(parse_problem("--stag=axb --dtag=axb mb1ic64ih28oc72oh28kh3ph1"), _wide()) is _wide()


@pytest.mark.usefixtures("every_level")
def test_vectors_along_pixels_stay_long() -> None:
    """Short vectors of seven pixels of a row leave fewer lanes empty, but read as many lines."""
    line = "--dir=BWD_D --stag=abx --dtag=abx g232mb1ic232ih7oc232oh7kh3ph1"
    assert level_of(parse_problem(line), _wide()) is _wide()


@pytest.mark.usefixtures("every_level")
def test_a_level_that_is_named_stays() -> None:
    problem = parse_problem(FEW)
    assert machine_of(problem).name == "avx2"
    with settings.scope(target="avx512"):
        assert machine_of(problem).name == "avx512"


@pytest.mark.usefixtures("every_level")
def test_the_answer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = parse_problem(FEW)
    assert level_of(problem, _wide()).name == "avx2"
    monkeypatch.setattr(vector_width, "expected_choice", None)
    assert level_of(problem, _wide()).name == "avx2"
    vector_width._is_faster.cache_clear()
    assert level_of(problem, _wide()).name == "avx2"


@pytest.mark.usefixtures("every_level")
def test_a_malformed_answer_is_made_anew() -> None:
    cache, problem = disk_cache(), parse_problem(FEW)
    assert cache is not None
    cache.put(cache_key("level of", str(problem.canonical()), registry.target("avx2").key, _wide().key), b"2")
    with pytest.warns(CacheWarning, match="is damaged"):
        assert level_of(problem, _wide()).name == "avx2"


@pytest.mark.skipif("avx512" not in {t.name for t in registry.host_targets()}, reason="this machine lacks avx512")
def test_compile_chooses_the_level() -> None:
    line = "--stag=axb --dtag=axb mb1ic96ih56oc24oh56kh1ph0"
    kernels = [cs.compile(line, threads=1), cs.compile(line, threads=1, target="avx512")]
    assert [k.target.name for k in kernels] == ["avx2", "avx512"]
    assert cs.compile(line, threads=1, dynamic="ih,iw").target.name == "avx512"
    assert cs.compile(line, threads=1, config="--reduce=kh,kw,ic").target.name == "avx512"
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((1, 96, 56, 56), (24, 96, 1, 1)))
    expected = np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0])
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for k in kernels:
        np.testing.assert_array_equal(k.run(src=x, wei=w)["dst"], expected)
