"""`share_storage`: who shares memory with whom, and that no value changes."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from convsmith.diag.errors import ConfigError
from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Alloc, Block, Function, Kernel, block
from convsmith.ir.verify import verify
from convsmith.passes.outline import outline
from convsmith.passes.share_storage import plan_storage, share_storage

HEAD = "kernel k(a: f32[8], b: f32[8])\n"


def kernel(text: str) -> Kernel:
    """The kernel of the indented lines of its body, which copies `a` to `b` by way of buffers."""
    return parse_kernel(HEAD + "\n".join(line[2:] for line in text.strip("\n").split("\n")) + "\n")


def groups(k: Kernel, asynchronous: bool = False) -> list[str]:
    """The names of the buffers that share memory, a group a word."""
    plan = plan_storage(k, asynchronous)
    return [" ".join(x.buffer.name for x in g) for g in plan.groups if len(g) > 1]


def values(k: Kernel) -> np.ndarray:
    """The result of a kernel."""
    arrays = {"a": np.arange(8, dtype=np.float32), "b": np.zeros(8, np.float32)}
    verify(k)
    run(k, arrays)
    return arrays["b"]


def require_same_values(k: Kernel) -> Kernel:
    new = share_storage(k)
    np.testing.assert_array_equal(values(new), values(k))
    return new


CHAIN = """
    alloc x: f32[8] @cache:
      for i in 0 .. 8:
        x[i] = a[i]
      alloc y: f32[8] @cache:
        for i in 0 .. 8:
          y[i] = x[i] + 1.0
        alloc z: f32[4] @cache:
          for i in 0 .. 4:
            z[i] = y[i * 2]
          for i in 0 .. 4:
            b[i] = z[i]
"""


def test_the_plan_prints() -> None:
    assert str(plan_storage(kernel(CHAIN))) == (
        "x  f32[8]  32 bytes  statements 0 to 1  shares memory with z\n"
        "y  f32[8]  32 bytes  statements 1 to 2  memory of its own\n"
        "z  f32[4]  16 bytes  statements 2 to 3  shares memory with x\n"
        "peak 80 bytes before sharing, 64 after; 64 are alive at once, in 4 statements"
    )


def test_a_shared_buffer_has_the_first_name_and_the_largest_size() -> None:
    grown = require_same_values(kernel(CHAIN.replace("x: f32[8]", "x: f32[9]")))
    assert "alloc x: f32[9] @cache" in str(grown) and "alloc z" not in str(grown)
    later = CHAIN.replace("z: f32[4]", "z: f32[12]")
    assert "alloc x: f32[12] @cache" in str(require_same_values(kernel(later)))


def test_a_buffer_that_one_statement_reads_and_another_fills_is_kept() -> None:
    """One statement that reads one buffer and writes the other belongs to both lifetimes."""
    k = kernel("""
    alloc x: f32[8] @cache:
      alloc y: f32[8] @cache:
        for i in 0 .. 8:
          x[i] = a[i]
        for i in 0 .. 8:
          y[i] = x[-i + 7]
        for i in 0 .. 8:
          b[i] = y[i]
    """)
    assert groups(k) == []
    assert share_storage(k) is k


def test_a_buffer_lives_through_the_loop_that_accesses_it() -> None:
    """Iterations read what earlier ones left in `x`: `y` stands behind the last access of `x`, in one iteration."""
    k = kernel("""
    alloc x: f32[8] @cache:
      for i in 0 .. 8:
        x[i] = a[i]
      for n in 0 .. 3:
        for i in 0 .. 8:
          x[i] = x[i] * 2.0
        alloc y: f32[8] @cache:
          for i in 0 .. 8:
            y[i] = a[-i + 7]
          for i in 0 .. 8:
            b[i] = b[i] + y[i]
      for i in 0 .. 8:
        b[i] = b[i] + 1.0
    """)
    assert groups(k) == []
    require_same_values(k)


def test_a_buffer_of_an_iteration_shares_with_the_next_one() -> None:
    """An allocation within the loop has a lifetime within one iteration."""
    k = kernel("""
    for n in 0 .. 3:
      alloc x: f32[8] @cache:
        for i in 0 .. 8:
          x[i] = a[i]
        for i in 0 .. 8:
          b[i] = b[i] + x[i]
      alloc y: f32[8] @cache:
        for i in 0 .. 8:
          y[i] = a[-i + 7] + 1.0
        for i in 0 .. 8:
          b[i] = b[i] * 2.0 + y[i]
    """)
    assert groups(k) == ["x y"]
    require_same_values(k)


def test_copies_of_a_nest_give_a_buffer_several_lifetimes() -> None:
    k = kernel("""
    alloc y: f32[8] @cache:
      alloc x: f32[8] @cache:
        for i in 0 .. 8:
          x[i] = a[i]
        for i in 0 .. 8:
          b[i] = b[i] + x[i]
      for i in 0 .. 8:
        y[i] = a[-i + 7] + 1.0
      for i in 0 .. 8:
        b[i] = b[i] + y[i] * 3.0
    """)
    assert groups(k) == ["x y"]
    around = k.body
    assert isinstance(around, Alloc) and isinstance(around.body, Block)
    nest, fill, result = around.body.stmts[0], around.body.stmts[1], around.body.stmts[2]
    copied = replace(k, body=Alloc(around.buffer, block(nest, fill, nest, result)))
    plan = plan_storage(copied)
    assert [[tuple(t[:2]) for t in x.lifetimes] for x in plan.buffers] == [[(0, 1), (3, 4)], [(2, 5)]]
    assert groups(copied) == []
    require_same_values(copied)


@pytest.mark.parametrize("kind", ["parallel", "serial"])
def test_memory_of_each_thread_is_not_shared_with_memory_of_all(kind: str) -> None:
    k = kernel(f"""
    alloc x: f32[8] @cache:
      for i in 0 .. 8 {"#parallel" if kind == "parallel" else ""}:
        alloc y: f32[1] @cache:
          y[0] = a[i]
          b[i] = y[0] + 1.0
      for i in 0 .. 8:
        x[i] = a[i]
      for i in 0 .. 8:
        b[i] = b[i] + x[i]
    """.replace(" :", ":"))
    assert groups(k) == ([] if kind == "parallel" else ["y x"])
    require_same_values(k)


def test_buffers_of_two_types_and_of_several_dims_are_apart() -> None:
    other = CHAIN.replace("z: f32[4]", "z: s32[4]").replace("= y[i * 2]", "= cast(s32, y[i * 2])")
    assert groups(kernel(other.replace("= z[i]", "= cast(f32, z[i])"))) == []
    dims = CHAIN.replace("z: f32[4]", "z: f32[4, 2]").replace("z[i]", "z[i, 0]")
    assert groups(kernel(dims)) == []


SLICES = """
    for n in 0 .. 2:
      alloc x: f32[8] @cache:
        for i in 0 .. 8:
          x[i] = a[i]
        alloc y: f32[8] @cache:
          for i in 0 .. 8:
            y[i] = x[-i + 7] * 2.0
          alloc z: f32[8] @cache:
            for i in 0 .. 8:
              z[i] = y[i] + 1.0
            for i in 0 .. 8:
              b[i] = z[i]
"""


def test_asynchronous_copies_keep_a_loaded_buffer_and_a_stored_one_apart() -> None:
    """The load of a slice does not wait for the store of the slice before it."""
    k = kernel(SLICES)
    assert groups(k) == ["x z"]
    assert groups(k, asynchronous=True) == []
    assert "copies are asynchronous" in str(plan_storage(k, asynchronous=True))
    assert share_storage(k, asynchronous=True) is k


def test_asynchronous_copies_block_only_where_they_follow() -> None:
    """Without a loop around, a load that comes first waits for nobody, and nothing waits for a store at the end."""
    once = kernel("\n".join(line[2:] for line in SLICES.strip("\n").split("\n")[1:]))
    assert groups(once, asynchronous=True) == ["x z"]


def test_an_asynchronous_load_does_not_wait_for_a_computation() -> None:
    """The second buffer may be filled ahead, while the first is still read."""
    k = kernel("""
    alloc x: f32[8] @cache:
      for i in 0 .. 8:
        x[i] = a[i] * 2.0
      for i in 0 .. 8:
        b[i] = x[i]
    alloc y: f32[8] @cache:
      for i in 0 .. 8:
        y[i] = a[i]
      for i in 0 .. 8:
        b[i] = b[i] + y[i] * 3.0
    """)
    assert groups(k) == ["x y"]
    assert groups(k, asynchronous=True) == []


def test_arrays_that_functions_have_pointers_into_share_memory() -> None:
    """A call accesses the arrays that it passes: the groups are those of the same kernel without functions."""
    nest = """
    alloc x: f32[8] @cache:
      alloc y: f32[8] @cache:
        alloc z: f32[8] @cache:
          for i in 0 .. 8:
            x[i] = a[i]
          for j in 0 .. 8:
            y[j] = x[-j + 7] * 2.0
          for k in 0 .. 8:
            z[k] = y[-k + 7] + 1.0
          for l in 0 .. 8:
            b[l] = z[l] + y[l]
    """
    plain = kernel(nest)
    called = require_same_values(outline(plain, ("j", "k")))
    np.testing.assert_array_equal(values(called), values(plain))
    assert groups(outline(plain, ("j", "k"))) == groups(plain) == ["x z"]
    assert "alloc z" not in str(called) and "function loop0(ptr0: y, ptr1: x)" in str(called)


def test_functions_beside_asynchronous_copies_are_refused() -> None:
    k = kernel(CHAIN)
    outlined = replace(k, functions=(Function("f", (), (), k.body),))
    with pytest.raises(ConfigError, match="kernel k has functions, which hide copies; legal beside asynchronous"):
        share_storage(outlined, True)


class Writer:
    """Writes the text of a random kernel: buffers that are written whole before they are read, in loops or not."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.lines: list[str] = []
        self.count = 0

    def body(self, ready: list[str], depth: int, indent: int) -> None:
        """Write some statements; those after an allocation stand in its scope."""
        ready = list(ready)
        for _ in range(self.r.randint(2, 5)):
            kind = self.r.choice(("alloc", "alloc", "loop", "write", "result"))
            if kind == "alloc" and self.count < 8:
                name, self.count = f"t{self.count}", self.count + 1
                self.put(indent, f"alloc {name}: f32[{self.r.choice((8, 8, 9, 12))}] @cache:")
                indent += 1
                self.nest(indent, f"{name}[i] = {self.sum(ready)}")
                ready.append(name)
            elif kind == "loop" and depth < 2:
                self.put(indent, f"for n{depth} in 0 .. {self.r.randint(1, 3)}:")
                self.body(ready, depth + 1, indent + 1)
            elif kind == "write" and len(ready) > 1:
                self.nest(indent, f"{self.r.choice(ready[1:])}[i] = {self.sum(ready)}")
            else:
                self.nest(indent, f"b[i] = {self.sum(ready)} - b[i]")
        self.nest(indent, f"b[i] = b[i] + {self.sum(ready)}")

    def sum(self, ready: list[str]) -> str:
        """A sum of elements of two buffers."""
        terms = (f"{self.r.choice(ready[-4:])}[{self.r.choice(('i', '-i + 7'))}]" for _ in range(2))
        return " + ".join((*terms, f"{self.r.randint(0, 3)}.0"))

    def nest(self, indent: int, statement: str) -> None:
        self.put(indent, "for i in 0 .. 8:")
        self.put(indent + 1, statement)

    def put(self, indent: int, line: str) -> None:
        self.lines.append("  " * indent + line)

    def kernel(self) -> Kernel:
        self.body(["a"], 0, 1)
        return parse_kernel(HEAD + "\n".join(self.lines) + "\n")


def test_no_value_of_a_random_kernel_changes() -> None:
    shared = 0
    for seed in range(75):
        k = Writer(seed).kernel()
        plan = plan_storage(k)
        assert plan.live <= plan.after <= plan.before
        shared += require_same_values(k) is not k
    assert shared > 15
