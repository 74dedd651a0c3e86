"""`PtxInterpreter`: the entries of an artifact for NVIDIA's GPUs, through the interpreter of PTX."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from convsmith.codegen.artifact import Artifact, Entry, MapArgument
from convsmith.diag.record import record
from convsmith.emulate.base import EmulatedCode, Emulator, Memory
from convsmith.emulate.ptx.launch import Blank, run
from convsmith.emulate.ptx.parser import PtxError
from convsmith.emulate.ptx.tensor_copies import PtxTensorMap
from convsmith.ir.types import DTYPES
from convsmith.machine.base import Machine
from convsmith.runtime.loading import LoadedCode

__all__ = ["PTX", "PtxInterpreter", "tensor_map"]


@record(frozen=True)
class PtxInterpreter(Emulator):
    """The interpreter of PTX; `seed` decides the schedules of warps and groups."""

    seed: int = 0

    @property
    def name(self) -> str:
        return "the interpreter of PTX"

    def runs(self, machine: Machine) -> bool:
        return machine.device is not None and machine.device.code == "ptx"

    def check(self, machine: Machine) -> None:
        """The interpreter is part of this package, and runs code for every level."""

    def load(self, artifact: Artifact) -> LoadedCode:
        return EmulatedCode(artifact, partial(self._run, artifact))

    def _run(self, artifact: Artifact, entry: Entry, memory: Memory) -> None:
        """Interpret an entry on memory. PtxError names a fault of the program."""
        launch, names = entry.launch, [a.name for a in entry.arguments]
        pieces = memory.pieces
        given = [
            memory.sizes[name] if name in memory.sizes
            else Blank(pieces[name].contents.size, np.uint8) if pieces[name].is_blank
            else pieces[name].contents
            for name in names
        ] + [tensor_map(x, names) for x in launch.maps]  # fmt: skip
        try:
            text = artifact.notes["ptx"]
            found = run(text, entry.symbol, launch.grid, given, launch.group, launch.shared, self.seed)
        except PtxError as error:
            raise PtxError(
                f"the kernel of {artifact.problem!r} (config {artifact.config}) stopped in {self.name}: {error}"
            ) from None
        for name, after in zip(names, found):
            if name in memory.sizes:
                continue
            assert after is not None
            if pieces[name].is_written:
                pieces[name].contents[:] = after
            elif (after != pieces[name].contents).any():
                raise PtxError(f"entry {entry.symbol} of kernel {artifact.problem!r} writes its input {name}")


PTX = PtxInterpreter()


def tensor_map(made: MapArgument, names: Sequence[str]) -> PtxTensorMap:
    """Return the map of the tensor that an argument, one of `names`, points to."""
    m, size = made.map, DTYPES[made.dtype].bytes
    steps = tuple(n * size for n in m.strides[1:])
    return PtxTensorMap(
        names.index(made.of), size, m.dims, steps, m.box, made.swizzle, m.pixels, m.lower, m.upper, m.steps
    )
