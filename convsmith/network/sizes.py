"""`NetworkOfSizes`: the function of a network whose inputs have several sizes, with a compiled plan for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from convsmith.diag.collection import no_collection
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.forking import RenewedLock, import_lock
from convsmith.diag.printable import printable
from convsmith.network.files.file import load_images, save_images
from convsmith.network.image import NetworkForm
from convsmith.network.network import Network
from convsmith.network.weights import PackedWeights
from convsmith.runtime.arrays import as_array

if TYPE_CHECKING:
    from convsmith.network.program import NetworkProgram

__all__ = ["Dims", "NetworkOfSizes", "load"]

Dims: TypeAlias = Mapping[str, tuple[int | str, ...]]
"""Sizes of inputs by name: numbers, and names of sizes that a call gives."""
_Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
_Key: TypeAlias = tuple[tuple[int, ...], ...]

_making = RenewedLock()
_LISTED = 8
"""Maximum number of sizes that an error lists."""


class NetworkOfSizes:
    """A network as one function for several sizes of its inputs, which is called as a `Network` is.

    `dims` are the sizes of the inputs; those with one name are equal. The first call with new sizes compiles a plan,
    which is kept. Plans share the weights that are packed alike. `make` returns the program for shapes of the inputs,
    given the area of the weights; without it, the sizes of the plans are the only legal ones.
    """

    def __init__(
        self, name: str, dims: Dims, make: Callable[[_Shapes, PackedWeights], NetworkProgram] | None,
        plans: Iterable[Network] = (),
    ) -> None:  # fmt: skip
        self.name, self.dims, self._make = name, dict(dims), make
        self._plans: dict[_Key, Network] = {tuple(net.inputs.values()): net for net in plans}
        self._weights = PackedWeights(shared=True)

    @property
    def plans(self) -> tuple[Network, ...]:
        """The networks for the sizes so far."""
        return tuple(self._plans.values())

    def at(self, shapes: _Shapes) -> Network:
        """Return the network for `shapes` of the inputs, by name.

        UsageError for shapes that the network does not have, or a missing input; UnsupportedError if no kernel computes
        a node for these sizes.
        """
        key = self._checked(shapes)
        found = self._plans.get(key)
        if found is not None:
            return found
        if self._make is None:
            sizes = [self._form(dict(zip(self.dims, one))) for one in self._plans]
            more = f" and {len(sizes) - _LISTED} others" if len(sizes) > _LISTED else ""
            raise UsageError(
                f"{self.name} has no plan for {self._form(shapes)}; available are {'; '.join(sizes[:_LISTED])}{more}",
                code="sizes",
            )
        with import_lock:
            from convsmith.network.driver import image_of

        with _making.lock:
            if key not in self._plans:
                program = self._make(dict(zip(self.dims, key)), self._weights)
                self._plans[key] = Network(image_of(program), program)
            return self._plans[key]

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Return the output for inputs by position or by name, or a tuple of all outputs if there are several."""
        names = [*self.dims]
        if len(arrays) > len(names):
            raise UsageError(
                f"{len(arrays)} arrays are given; the network has {len(names)} inputs: {', '.join(names)}",
                code="inputs",
            )
        return self._for({**dict(zip(names, arrays)), **named})(*arrays, **named)

    def run(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name; an output in `arrays` is written in place."""
        return self._for(arrays).run(arrays)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plans so far to a file that `convsmith.load` maps in another process. UsageError if it cannot be
        written; UnsupportedError if there is no plan yet.
        """
        if not self._plans:
            raise UnsupportedError(f"{self.name} has no plan; available are networks after a call", code="sizes")
        with _making.lock:
            form = NetworkForm(tuple(self.dims), tuple(tuple(map(str, dims)) for dims in self.dims.values()))
            save_images([net.image for net in self._plans.values()], form, path)

    def _for(self, arrays: Mapping[str, Any]) -> Network:
        """Return the network for the shapes of `arrays`."""
        shapes = {}
        for name in self.dims:
            if name in arrays:
                shapes[name] = tuple(as_array(name, arrays[name]).shape)
        return self.at(shapes)

    def _checked(self, shapes: _Shapes) -> _Key:
        """Return the shapes in the order of the inputs."""
        sizes: dict[str, tuple[int, str]] = {}
        for name, dims in self.dims.items():
            if name not in shapes:
                raise UsageError(f"{printable(name)}: missing; legal is an array of {_text(dims)}", code="missing")
            shape = tuple(shapes[name])
            fits = len(shape) == len(dims)
            if not fits or any(isinstance(d, int) and d != size for d, size in zip(dims, shape)) or 0 in shape:
                raise UsageError(f"{printable(name)}: has the shape {shape}; legal is {_text(dims)}", code="shape")
            for dim, size in zip(dims, shape):
                if isinstance(dim, str):
                    known, where = sizes.setdefault(dim, (size, name))
                    if known != size:
                        raise UsageError(
                            f"{printable(dim)} is {known} in {printable(where)} and {size} in {printable(name)}; legal "
                            "is one size", code="shape",
                        )  # fmt: skip
        return tuple(tuple(shapes[name]) for name in self.dims)

    def _form(self, shapes: _Shapes) -> str:
        return ", ".join(f"{printable(name)} {_text(shape)}" for name, shape in shapes.items())

    def __repr__(self) -> str:
        return f"<NetworkOfSizes {self.name}: {self._form(self.dims)}, {len(self._plans)} plans>"  # type: ignore[arg-type]


def _text(dims: Sequence[int | str]) -> str:
    """Return sizes as a text."""
    return " x ".join(printable(str(x)) for x in dims) or "one element"


def load(path: str | os.PathLike[str]) -> Network | NetworkOfSizes:
    """Return the network in a file that `save` of a network wrote; its weights are mapped, and nothing is compiled.

    A file holds machine code: load only files whose origin you trust. UsageError if the file is missing, damaged or of
    another version; UnsupportedError if this CPU lacks an instruction set that the code needs.
    """
    with no_collection():
        images, form = load_images(path)
        plans = [Network(image) for image in images]
    if not form.names:
        return plans[0]
    dims = {
        name: tuple(int(x) if x.isdecimal() else x for x in sizes) for name, sizes in zip(form.names, form.dims)
    }  # fmt: skip
    return NetworkOfSizes(images[0].name, dims, None, plans)
