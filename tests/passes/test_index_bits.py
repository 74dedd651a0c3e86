"""32 bits are enough where every sum, and every term of one, fits them with its sign."""

from __future__ import annotations

import pytest

from convsmith.ir.parse import parse_kernel
from convsmith.passes.narrow_index import narrow_index

FAR = (1 << 31) - 4


@pytest.mark.parametrize(
    ("body", "bits"),
    [
        ("for i in 0 .. 4: d[i] = 1.0", 32),
        (f"for i in {FAR} .. {FAR + 3}: d[i - {FAR}] = 1.0", 64),
        (f"for i in {FAR // 2} .. {FAR // 2 + 3}: d[i - {FAR // 2}] = 1.0", 32),
        (f"for i in -{FAR} .. {3 - FAR}: d[i + {FAR}] = 1.0", 64),
        (f"for i in -{FAR} .. {3 - FAR}: if i + 8 >= 0: d[0] = 1.0", 64),
        (f"for i in 0 .. 2: for j in 0 .. 2: if i * {FAR - 1} - j * {FAR} >= 0: d[i] = 1.0", 64),
        ("for i in 0 .. 3: for j in 0 .. 3: d[i // 2 + j % 2] = 1.0", 32),
    ],
)
def test_every_part_of_an_index_fits(body: str, bits: int) -> None:
    assert narrow_index(parse_kernel(f"kernel k(d: f32[8])\n  {body}\n")).index_bits == bits


@pytest.mark.parametrize(("size", "bits"), [((1 << 31) - 1, 32), (1 << 31, 64)])
def test_every_array_fits(size: int, bits: int) -> None:
    assert narrow_index(parse_kernel(f"kernel k(d: f32[{size}])\n  d[0] = 1.0\n")).index_bits == bits


@pytest.mark.parametrize(("step", "bits"), [(8, 32), (FAR // 2, 64)])
def test_every_part_of_an_index_fits_in_functions(step: int, bits: int) -> None:
    """The arguments of all calls bound the indices of a function: the second call reaches farther than the first."""
    kernel = parse_kernel(f"""function f(ptr0: d, arg0)
  for j in 0 .. 4:
    if arg0 + j * 2 + 1 >= 0:
      d[j + ptr0] = 1.0
kernel k(d: f32[8])
  for i in 0 .. 3:
    call f(d @ i, i)
    call f(d @ i, i * {step})
""")
    assert narrow_index(kernel).index_bits == bits
