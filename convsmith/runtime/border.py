"""`Border`: the tensors that a call takes and gives by name, and the checks that come before a kernel runs.

Nothing has been written when one of them fails.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from convsmith.codegen.artifact import Argument, Artifact
from convsmith.diag.errors import UsageError
from convsmith.ir.types import dtype as type_row
from convsmith.runtime.arrays import Array, ArraySpec, address_of, overlap
from convsmith.runtime.foreign import like, speaks
from convsmith.runtime.packed import Packed

__all__ = ["BY_NAME", "Border", "Given", "Names", "tensors_of"]

Given: TypeAlias = Array | Packed | float
"""What a call may give: a number stands for a scale or zero point of one element."""


class Names(dict[str, str]):
    """What the caller's function calls tensors, for messages; those that are not in it go by their own names."""

    def __missing__(self, name: str) -> str:
        return name


BY_NAME = Names()

_SCALES = "scales_"
_QUANTITIES = (_SCALES, "zero_points_")


def tensors_of(artifact: Artifact) -> dict[str, Argument]:
    """What a call takes and gives. What an entry reads and a later one writes is read, then written."""
    packing = (artifact.entries[name] for names in artifact.packs.values() for name in names)
    plain = {argument.name: argument for entry in packing for argument in entry.arguments if argument.role == "in"}
    tensors: dict[str, Argument] = {}
    for entry in artifact.steps.values():
        for argument in entry.arguments:
            if argument.role in ("scratch", "shared", "table", "zero", "size"):
                continue
            tensor = plain[argument.of] if argument.role == "packed" else argument
            known = tensors.setdefault(tensor.name, tensor)
            if known.role == "in" and tensor.role != "in":
                tensors[tensor.name] = replace(known, role="inout")
            if argument.role == "packed":
                for beside in _packed_with(artifact, argument.of):
                    tensors.setdefault(beside.name, beside)
    return tensors


def _packed_with(artifact: Artifact, operand: str) -> list[Argument]:
    """What is read to pack an operand, besides it."""
    entries = (artifact.entries[name] for name in artifact.packs[operand])
    return [a for entry in entries for a in entry.arguments if a.role == "in" and a.name != operand]


class Border:
    """The tensors of a kernel: `specs` by name, in order, and which of them are `inputs` and `outputs` ("inout": both).

    `operand` names the input that may come as `Packed` (empty: none does); with the weights comes their bias.
    `defaults` are arrays that stand for inputs that a call does not give.
    """

    def __init__(self, tensors: Sequence[Argument], operand: str) -> None:
        self.operand = operand
        self.specs = {tensor.name: ArraySpec(tensor) for tensor in tensors}
        self.inputs = tuple(tensor.name for tensor in tensors if tensor.role != "out")
        self.outputs = tuple(tensor.name for tensor in tensors if tensor.role != "in")
        self.defaults = {t.name: self.specs[t.name].filled(t.default) for t in tensors if t.default is not None}
        self.takes_bias = operand == "wei" and "bia" in self.inputs
        self.forward = {"src", "wei"} <= set(self.inputs) and "dst" in self.outputs
        self.empty = all(self.specs[name].empty_tensor for name in self.outputs)
        self.without_default = tuple(
            name for name in self.inputs if name not in (*self.defaults, "src", "wei", "bia", "dst")
        )

    def take(
        self, arrays: Mapping[str, Given], names: Names = BY_NAME
    ) -> tuple[dict[str, Array | Packed], dict[str, Array]]:
        """Checked inputs (only those given, without "inout" ones) and outputs (new ones where none are given)."""
        for name in arrays:
            if name not in self.specs:
                raise self._unknown(name)
        packed = arrays.get(self.operand)
        taken: dict[str, Array | Packed] = {}
        results: dict[str, Array] = {}
        for name, spec in self.specs.items():
            role = spec.argument.role
            if name in arrays:
                given = arrays[name]
                if role != "in":
                    ready = type(given) is np.ndarray and spec.fits(given) and given.flags.writeable
                    results[name] = given if ready else spec.check_output(given, names[name])  # type: ignore[assignment]
                elif name == self.operand and isinstance(packed, Packed):
                    taken[name] = packed
                elif name == "bia" and self.takes_bias and isinstance(packed, Packed):
                    raise _beside_packed(names)
                else:
                    ready = type(given) is np.ndarray and not name.startswith(_QUANTITIES) and spec.fits(given)
                    taken[name] = given if ready else _checked(spec, given, names[name])  # type: ignore[assignment]
            elif role == "out":
                results[name] = spec.empty()
            elif name == "bia" and self.takes_bias and isinstance(packed, Packed):
                if packed.bias is not None:  # else it is packed for another kernel
                    taken[name] = packed.bias
            elif name not in self.defaults:
                old = " with the values that the kernel reads" if role == "inout" else ""
                raise UsageError(f"{names[name]}: missing; legal is an array of {spec.form}{old}", code="missing")
        self._check_overlaps(arrays.keys(), taken, results, names)
        return taken, results

    def give(self, arrays: Mapping[str, Given], results: Mapping[str, Array]) -> dict[str, Array]:
        """What a call returns: outputs as they were given, and new ones in the library of the first activations."""
        first: Given | None = None
        for name in self.inputs:
            given = arrays.get(name)
            if name not in ("wei", *self.outputs) and (isinstance(given, np.ndarray) or speaks(given)):
                first = given
                break
        return {name: arrays[name] if name in arrays else like(first, x) for name, x in results.items()}  # type: ignore[misc]

    def positional(
        self, src: Given, weights: Given, bias: Array | None, out: Array | None, names: Names = BY_NAME
    ) -> dict[str, Given]:
        """The arrays of a call (src, weights, bias, out) by name."""
        if not self.forward:
            raise UsageError(
                f"a call takes src, wei and bia and gives dst; this kernel takes {', '.join(self.inputs)} and gives "
                f"{', '.join(self.outputs)}: legal is {self._run()}",
                code="positional",
            )
        if self.without_default:
            raise UsageError(
                f"{', '.join(self.without_default)}: missing, without a default: legal is {self._run()}", code="missing"
            )
        if isinstance(weights, Packed):
            if bias is not None:
                raise _beside_packed(names)
        else:
            self._check_bias(bias, "bia" in self.inputs, names)
        arrays = {"src": src, "wei": weights}
        if bias is not None:
            arrays["bia"] = bias
        if out is not None:
            arrays["dst"] = out
        elif "dst" in self.inputs:
            message = f"{names['dst']}: missing; legal is out= with the values that the kernel reads"
            raise UsageError(message, code="missing")
        return arrays

    def check_operand(self, array: Array, bias: Array | None, names: Names = BY_NAME) -> tuple[Array, Array | None]:
        """The operand and the bias that are to be packed, checked."""
        if not self.operand:
            raise UsageError(f"this kernel packs nothing: legal is {self._run()} with plain arrays", code="packing")
        checked = self.specs[self.operand].check(array, names[self.operand])
        self._check_bias(bias, self.takes_bias, names)
        return checked, None if bias is None else self.specs["bia"].check(bias, names["bia"])

    def check_packed_alone(self, artifact: Artifact) -> None:
        """UsageError where the operand cannot be packed without arrays that only a call gives."""
        others = [a.name for a in _packed_with(artifact, self.operand) if a.name not in self.defaults]
        if others:
            raise UsageError(
                f"{self.operand} is packed with {', '.join(others)}: legal is {self._run()} with plain arrays",
                code="packing",
            )

    def packed_elsewhere(self, packed: Packed, signature: str, names: Names = BY_NAME) -> UsageError:
        """The error for an operand that is not packed as `signature` says."""
        return UsageError(
            f"{names[self.operand]}: packed for another kernel: {packed.signature}; legal is {signature} (what `pack` "
            "of this kernel returns)",
            code="packing",
        )

    def _check_bias(self, bias: Array | None, due: bool, names: Names) -> None:
        called = names["bia"]
        if not due:
            if bias is not None:
                raise UsageError(
                    f"{called}: this problem has no bias; legal is None, or a problem with one", code="bias"
                )
        elif bias is None:
            shape = self.specs["bia"].shape
            raise UsageError(f"{called}: missing; this problem has a bias of shape {shape}", code="bias")

    def _check_overlaps(
        self, given: Iterable[str], taken: Mapping[str, Array | Packed], results: Mapping[str, Array], names: Names
    ) -> None:
        outputs = [name for name in given if name in results]
        for n, name in enumerate(outputs):
            others: dict[str, Array | Packed] = {**taken, **{other: results[other] for other in outputs[:n]}}
            for other, array in others.items():
                if (
                    isinstance(array, np.ndarray)
                    and not self._apart(name, results[name], other, array)
                    and overlap(results[name], array)
                ):
                    raise UsageError(
                        f"{names[name]}: shares memory with {names[other]}; legal is memory of its own", code="overlap"
                    )

    def _apart(self, name: str, array: Array, other: str, second: Array) -> bool:
        """Whether two arrays that fit plainly lie in different places; False where that takes a closer look."""
        a, b = self.specs[name], self.specs[other]
        if array.strides not in a.stride_forms or second.strides not in b.stride_forms:
            return False
        start, second_start = address_of(array), address_of(second)
        return start + a.extent <= second_start or second_start + b.extent <= start

    def _unknown(self, name: str) -> UsageError:
        near = difflib.get_close_matches(name, self.specs, 1, 0.5)
        nearest = f" (nearest is {near[0]})" if near else ""
        return UsageError(f"{name} is unknown: legal are {', '.join(self.specs)}{nearest}", code="unknown-argument")

    def _run(self) -> str:
        needed = [name for name in self.inputs if name not in self.defaults]
        return f"k.run({', '.join(f'{name}=...' for name in needed)})"


def _beside_packed(names: Names) -> UsageError:
    message = f"{names['bia']}: packed weights hold the bias; legal is no bias beside them"
    return UsageError(message, code="bias")


def _checked(spec: ArraySpec, given: object, name: str) -> Array:
    """An input as an array; scales and zero points of one element may be numbers, and scales must be divisors."""
    if not name.startswith(_QUANTITIES):
        return spec.check(given, name)
    array = _of_number(spec, given) if isinstance(given, (int, float, np.number)) else spec.check(given)
    if name.startswith(_SCALES):
        wrong = np.argwhere(~np.isfinite(array) | (array == 0))
        if len(wrong):
            at = tuple(map(int, wrong[0]))
            where = f"[{', '.join(map(str, at))}]" if isinstance(given, np.ndarray) else ""
            raise UsageError(f"{name}{where} is {array[at]}; legal are finite numbers other than 0", code="value")
    return array


def _of_number(spec: ArraySpec, number: float | np.number[Any]) -> Array:
    name, row = spec.argument.name, type_row(spec.argument.dtype)
    if spec.shape != (1,) * len(spec.shape):
        raise UsageError(
            f"{name}: one number, {number}, stands for one element; legal is an array of {spec.form}", code="shape"
        )
    if row.kind != "float":
        low, high = (0, 2**row.bits - 1) if row.kind == "uint" else (-(2 ** (row.bits - 1)), 2 ** (row.bits - 1) - 1)
        if not isinstance(number, (int, np.integer)) or not low <= number <= high:
            raise UsageError(f"{name} is {number}; legal are whole numbers from {low} to {high}", code="value")
    with np.errstate(over="ignore"):
        return spec.filled((number,))  # type: ignore[arg-type]  # numpy's numbers too
