"""Arguments of tensors, and the identity of a packing."""

from __future__ import annotations

from convsmith.compiler.arguments import argument_of
from convsmith.compiler.packing_identity import packing_identity
from convsmith.ir.parse import parse_kernel
from convsmith.problem import parse_problem


def test_an_identity_tells_packings_apart() -> None:
    text = "kernel p(a: f32[4], b: f32[4])\n  for i in 0 .. 4:\n    b[i] = a[i]\n"
    texts = (text, text.replace("a[i]", "a[3 - i]"), text.replace("4]", "5]"))
    found = [packing_identity(parse_kernel(t)) for t in texts]
    assert len(set(found)) == 3 and packing_identity(parse_kernel(text)) == found[0]


def test_names_and_loops_of_one_iteration_do_not_matter_to_an_identity() -> None:
    one = "kernel p(a: f32[4], b: f32[4])\n  for i in 0 .. 4:\n    b[i] = a[3 - i]\n"
    two = (
        "kernel p(a: f32[4], b: f32[1, 4, 1])\n  for i in 0 .. 1:\n    for x in 0 .. 4:\n      for j in 0 .. 1:\n"
        "        b[i, x, j] = a[3 - x - i]\n"
    )
    assert packing_identity(parse_kernel(one)) == packing_identity(parse_kernel(two))


def test_an_argument_is_its_tensor() -> None:
    tensor = parse_problem("--stag=aBc4b mb2ic6iw4oc4ow4kw1").tensor("src")
    argument = argument_of(tensor)
    assert (argument.name, argument.role, argument.dtype, argument.shape) == ("src", "in", "f32", (2, 6, 4))
    assert (argument.layout, argument.size, argument.dims) == ("aBc4b", 2 * 2 * 4 * 4, ("mb", "ic", "iw"))
