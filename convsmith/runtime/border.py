"""`Border`: the tensors that a call takes and returns by name, and the checks before a kernel runs.

A failed check leaves all arrays unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from convsmith.codegen.artifact import Argument, Artifact
from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.ir.types import dtype as type_row
from convsmith.runtime.arrays import Array, ArraySpec, address_of, overlap
from convsmith.runtime.foreign import like, speaks
from convsmith.runtime.packed import Packed

__all__ = ["BY_NAME", "Border", "Given", "Names", "border_of", "tensors_of"]

Given: TypeAlias = Array | Packed | float
"""An argument of a call; a number is a scale or zero point of one element."""


class Names(dict[str, str]):
    """The caller's names of tensors, for messages; other tensors keep their own names."""

    def __missing__(self, name: str) -> str:
        return name


BY_NAME = Names()

_QUANTITIES = ("scales", "zero_points")
"""Contents of arrays for which a call may give one number."""


def tensors_of(artifact: Artifact) -> dict[str, Argument]:
    """Return the tensors that a call takes and returns; one that an entry reads and a later entry writes is "inout"."""
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
    """Return the tensors that are read to pack `operand`, besides itself."""
    entries = (artifact.entries[name] for name in artifact.packs[operand])
    return [a for entry in entries for a in entry.arguments if a.role == "in" and a.name != operand]


class Border:
    """The tensors of a kernel: `specs` by name in order, and the names of `inputs` and `outputs` ("inout": both).

    `operand` is the input that may be passed as `Packed` by position (empty if there is none); packed weights include
    their bias. By name, all inputs that are `packable` may be passed so.
    `defaults` are the arrays of inputs that a call omits.
    """

    def __init__(self, tensors: Sequence[Argument], operand: str, packable: Collection[str] = ()) -> None:
        self.operand = operand
        self.packable = frozenset(packable)
        self.specs = {tensor.name: ArraySpec(tensor) for tensor in tensors}
        self.inputs = tuple([tensor.name for tensor in tensors if tensor.role != "out"])
        self.outputs = tuple([tensor.name for tensor in tensors if tensor.role != "in"])
        self.defaults = {t.name: self.specs[t.name].filled(t.default) for t in tensors if t.default is not None}
        held = {tensor.holds: tensor.role for tensor in tensors}
        self.has_bias = held.get("bia") == "in"
        self.packs_weights = bool(operand) and self.specs[operand].argument.holds == "wei"
        self.takes_bias = self.packs_weights and self.has_bias
        one = [tensor.holds for tensor in tensors].count("wei") == 1
        self.forward = one and held.get("src") == held.get("wei") == "in" and held.get("dst") in ("out", "inout")
        self.adds_to_result = self.forward and held.get("dst") == "inout"
        self.empty = all([self.specs[name].empty_tensor for name in self.outputs])
        self.without_default = tuple([
            name for name in self.inputs
            if name not in self.defaults and self.specs[name].argument.holds not in ("src", "wei", "bia", "dst")
        ])

    def take(
        self, arrays: Mapping[str, Given], names: Names = BY_NAME
    ) -> tuple[dict[str, Array | Packed], dict[str, Array]]:
        """Return the checked inputs that are passed (without "inout" arrays) and the outputs (new arrays unless
        passed).
        """
        self.check_names(arrays)
        packed = arrays.get(self.operand)
        inputs: dict[str, Array | Packed] = {}
        results: dict[str, Array] = {}
        for name, spec in self.specs.items():
            role, is_bias = spec.argument.role, spec.argument.holds == "bia"
            if name in arrays:
                given = arrays[name]
                if role != "in":
                    ready = type(given) is np.ndarray and spec.fits(given) and given.flags.writeable
                    results[name] = given if ready else spec.check_output(given, names[name])  # type: ignore[assignment]
                elif name == self.operand and isinstance(packed, Packed):
                    inputs[name] = packed
                elif name in self.packable and isinstance(given, Packed):
                    inputs[name] = given
                elif is_bias and self.takes_bias and isinstance(packed, Packed):
                    raise _beside_packed(names)
                else:
                    plain = spec.argument.holds not in _QUANTITIES
                    ready = type(given) is np.ndarray and plain and spec.fits(given)
                    inputs[name] = given if ready else _checked(spec, given, names[name])  # type: ignore[assignment]
            elif role == "out":
                results[name] = spec.empty()
            elif is_bias and self.takes_bias and isinstance(packed, Packed):
                if packed.bias is not None:  # otherwise it is packed for another kernel
                    inputs[name] = packed.bias
            elif name not in self.defaults:
                old = " with the values that the kernel reads" if role == "inout" else ""
                raise UsageError(f"{names[name]}: missing; legal is an array of {spec.form}{old}", code="missing")
        self._check_overlaps(arrays.keys(), inputs, results, names)
        return inputs, results

    def check_names(self, names: Iterable[str]) -> None:
        """Raise UsageError if one of `names` is no tensor of the kernel."""
        for name in names:
            if name not in self.specs:
                raise self._unknown(name)

    def give(self, arrays: Mapping[str, Given], results: Mapping[str, Array]) -> dict[str, Array]:
        """Return the results of a call: outputs as passed, and new outputs in the library of the first activations."""
        first: Given | None = None
        for name in self.inputs:
            given = arrays.get(name)
            of_call = name not in self.outputs and self.specs[name].argument.holds != "wei"
            if of_call and (isinstance(given, np.ndarray) or speaks(given)):
                first = given
                break
        return {name: arrays[name] if name in arrays else like(first, x) for name, x in results.items()}  # type: ignore[misc]

    def positional(
        self, src: Given, weights: Given, bias: Array | None, out: Array | None, names: Names = BY_NAME
    ) -> dict[str, Given]:
        """Return the arrays of a positional call (src, weights, bias, out) by name."""
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
            self._check_bias(bias, self.has_bias, names)
        arrays = {"src": src, "wei": weights}
        if bias is not None:
            arrays["bia"] = bias
        if out is not None:
            arrays["dst"] = out
        elif self.adds_to_result:
            message = f"{names['dst']}: missing; legal is out= with the values that the kernel reads"
            raise UsageError(message, code="missing")
        return arrays

    def check_operand(self, array: Array, bias: Array | None, names: Names = BY_NAME) -> tuple[Array, Array | None]:
        """Return the checked operand and bias that are to be packed."""
        if not self.operand:
            raise UsageError(f"this kernel packs nothing: legal is {self._run()} with plain arrays", code="packing")
        checked = self.specs[self.operand].check(array, names[self.operand])
        self._check_bias(bias, self.takes_bias, names)
        return checked, None if bias is None else self.specs["bia"].check(bias, names["bia"])

    def check_packed_alone(self, artifact: Artifact, operand: str) -> None:
        """Raise UsageError if `operand` can only be packed together with arrays of a call."""
        others = dict.fromkeys(a.name for a in _packed_with(artifact, operand) if a.name not in self.defaults)
        if others:
            raise UsageError(
                f"{operand} is packed with {', '.join(others)}: legal is {self._run()} with plain arrays",
                code="packing",
            )

    def packed_elsewhere(
        self, packed: Packed, signature: str, names: Names = BY_NAME, operand: str = ""
    ) -> UsageError:
        """Return the error for an `operand`, by default the positional one, whose packing is not `signature`."""
        return UsageError(
            f"{names[operand or self.operand]}: packed for another kernel: {packed.signature}; legal is {signature} "
            "(what `pack` of this kernel returns)",
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

    def is_apart(self, name: str, array: Array, others: Sequence[str], arrays: Sequence[Array]) -> bool:
        """Return whether an array is certainly disjoint from the others in memory."""
        return all([self._apart(name, array, other, second) for other, second in zip(others, arrays)])

    def _apart(self, name: str, array: Array, other: str, second: Array) -> bool:
        """Return whether two arrays are certainly disjoint in memory; False if that needs the full check."""
        a, b = self.specs[name], self.specs[other]
        if array.strides not in a.stride_forms or second.strides not in b.stride_forms:
            return False
        start, second_start = address_of(array), address_of(second)
        return start + a.extent <= second_start or second_start + b.extent <= start

    def _unknown(self, name: str) -> UsageError:
        return UsageError(f"{name} is unknown: legal are {choices(name, self.specs)}", code="unknown-argument")

    def _run(self) -> str:
        needed = [name for name in self.inputs if name not in self.defaults]
        return f"k.run({', '.join(f'{name}=...' for name in needed)})"


def border_of(artifact: Artifact) -> Border:
    """Return the tensors of `artifact`, and which of them a call may pass as `Packed`."""
    tensors = tensors_of(artifact)
    alone = _packed_alone(artifact)
    operand = _operand(artifact, tensors, alone)
    return Border(tuple(tensors.values()), operand, {*alone} - {operand})


def _packed_alone(artifact: Artifact) -> list[str]:
    """Return the operands that are packed for every entry: another entry may read an operand unpacked."""
    arguments = [argument for entry in artifact.steps.values() for argument in entry.arguments]
    both = {a.of for a in arguments if a.role == "packed"} & {a.name for a in arguments}
    return [name for name in artifact.packs if name not in both]


def _operand(artifact: Artifact, tensors: Mapping[str, Argument], alone: list[str]) -> str:
    """Return the input that may be packed beforehand, usually the weights; empty if there is none or several stages
    have weights.
    """
    weights = [t.name for t in tensors.values() if t.holds == "wei" and t.role == "in"]
    if len(weights) > 1:
        return ""
    if weights and (weights[0] in alone or weights[0] not in artifact.packs):
        return weights[0]
    return next(iter(alone), "")


def _beside_packed(names: Names) -> UsageError:
    message = f"{names['bia']}: packed weights hold the bias; legal is no bias beside them"
    return UsageError(message, code="bias")


def _checked(spec: ArraySpec, given: object, name: str) -> Array:
    """Return an input as an array; a scale or zero point of one element may be a number, and scales must be non-zero.
    """
    if spec.argument.holds not in _QUANTITIES:
        return spec.check(given, name)
    array = _of_number(spec, given) if isinstance(given, (int, float, np.number)) else spec.check(given)
    if spec.argument.holds == "scales":
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
