"""The way of a problem, from the front end to the callable, leads down the layers: few calls go back up.

A call goes up if the folder of the function that is called imports that of its caller (`test_layers.py`). Each is a
function that a caller further up has passed down, so a reader has to go back to find it. Traversals of the IR and of
index arithmetic, which call the methods of passes, and properties are no such way: the folders `ir` and `arith`, and
`cached_property`, call what they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType

import numpy as np
import pytest
from callcounts import noting_calls
from test_layers import ORDER, ROOT

import convsmith as cs
from convsmith.machine.registry import target

MOST = 3
CHOICE = ("compiler", "tune")
"""The default config is chosen where the cache has no kernel."""
MEMORY = ("codegen", "runtime")
"""One binder of arguments serves all memories: of this process, of emulators, of the interpreter."""
OF_FUNCTIONS = {
    MEMORY,
    ("exporter", "network"),
    ("statement", "network"),
    ("passes", "machine"),
    ("runtime", "network"),
}
"""The driver and the operators of a network are of classes further down, which call their methods; threads of the
runtime pack a network's weights."""
OF_TRAVERSALS = {"ir", "arith", "diag"}
RANK = {folder: n for n, folder in enumerate(ORDER)}


def folder_of(code: CodeType) -> str:
    """Return the folder of a function; empty for those of other packages, and for modules that are imported."""
    start = f"{ROOT}/"
    if not code.co_filename.startswith(start) or code.co_name == "<module>":
        return ""
    return code.co_filename.removeprefix(start).partition("/")[0]


@contextmanager
def climbs() -> Iterator[set[tuple[str, str]]]:
    """Yield the folders of callers and of functions above them that are called in the `with` block."""
    found = set[tuple[str, str]]()
    folders: dict[CodeType, str] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        called = folders.setdefault(frame.f_code, folder_of(frame.f_code))
        if event != "call" or called not in RANK:
            return
        before = frame.f_back
        while before is not None and not folders.setdefault(before.f_code, folder_of(before.f_code)):
            before = before.f_back
        caller = folders[before.f_code] if before is not None else ""
        if caller in RANK and caller not in OF_TRAVERSALS and RANK[called] > RANK[caller]:
            found.add((caller, called))

    with noting_calls(note):
        yield found


def of_cpu() -> None:
    k = cs.CompiledKernel(cs.Conv.parse("--stag=axb --dtag=axb mb1ic8ih6oc16oh6kh3ph1"), target("avx2"), threads=2)
    assert k.artifact is not None


def of_call() -> None:
    k = cs.compile("mb1ic8ih6iw6oc16kh3kw3ph1pw1", target="generic", dynamic="mb,ih,iw", threads=2)
    k(np.ones((1, 8, 5, 5), np.float32), np.ones((16, 8, 3, 3), np.float32))


def of_gpu() -> None:
    cs.CompiledKernel(cs.Conv.parse("--dt=f16 --stag=axb --dtag=axb mb8ic64ih14oc64oh14kh3ph1"), target("sm_90a"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "way, expected",
    [(of_cpu, {CHOICE}), (of_call, {CHOICE, MEMORY}), (of_gpu, {CHOICE})],
    ids=["cpu", "call", "gpu"],
)
def test_few_calls_go_back_up(way: Callable[[], None], expected: set[tuple[str, str]]) -> None:
    with cs.settings.scope(cache="off", database="off"), climbs() as found:
        way()
    assert found == expected and len(found) <= MOST


def test_few_calls_of_a_network_go_back_up() -> None:
    torch, ct = pytest.importorskip("torch"), pytest.importorskip("convsmith.torch")
    net = torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 24, 1))
    x = torch.ones(1, 16, 9, 9)
    with cs.settings.scope(cache="off", database="off"), climbs() as found, torch.no_grad():
        ct.optimize(net.eval(), x, keep_faster=False)(x)
    assert found - OF_FUNCTIONS == {CHOICE} and len(found) <= MOST + len(OF_FUNCTIONS)
