"""Every emulator, and the choice of one for a target."""

from __future__ import annotations

from convsmith.diag.errors import UnsupportedError
from convsmith.emulate.base import Emulator
from convsmith.emulate.boards import BOARDS
from convsmith.emulate.bochs import BOCHS
from convsmith.emulate.browser import BROWSER
from convsmith.emulate.opencl import OPENCL
from convsmith.emulate.ptx.emulator import PTX
from convsmith.emulate.qemu import AARCH64, HEXAGON, RISCV32, RISCV64, THUMB
from convsmith.emulate.wasm import WEB_ASSEMBLY
from convsmith.machine.base import Machine
from convsmith.machine.registry import device_targets, host_targets, known_targets
from convsmith.runtime.loading import check_device

__all__ = ["EMULATORS", "emulated", "emulator_for", "is_native"]

EMULATORS: tuple[Emulator, ...] = (
    AARCH64, HEXAGON, RISCV64, RISCV32, THUMB, BOARDS, BOCHS, WEB_ASSEMBLY, PTX, OPENCL, BROWSER,
)  # fmt: skip
"""All emulators. The first that is installed and runs a target is used."""


def emulator_for(machine: Machine) -> Emulator:
    """Return the emulator that runs code for a target. UnsupportedError if there is none, if it is not installed (the
    message names the package to install), or if it has no processor with the target's features; of several emulators,
    the error is the last one's.
    """
    error = None
    for emulator in EMULATORS:
        if emulator.runs(machine):
            try:
                emulator.check(machine)
            except UnsupportedError as of_this:
                error = of_this
            else:
                return emulator
    if error is not None:
        raise error
    others = (t for t in (*known_targets(), *device_targets()) if t not in host_targets())
    emulated = [t.name for t in others if any(e.runs(t) for e in EMULATORS)]
    raise UnsupportedError(
        f"this machine does not run code for {machine.name}, and no emulator does; emulated are {', '.join(emulated)}",
        code="emulator",
    )


def emulated(machine: Machine) -> Machine:
    """Return the machine, or the first of its alternatives, that an emulator runs. UnsupportedError, about the machine
    itself, if there is none.
    """
    error = None
    found: Machine | None = machine
    while found is not None:
        try:
            emulator_for(found)
        except UnsupportedError as of_this:
            error = error or of_this
            found = found.alternative
        else:
            return found
    assert error is not None
    raise error


def is_native(machine: Machine) -> bool:
    """Return whether this machine, or a device of it, runs code for a target without an emulator."""
    if machine.device is None:
        return machine in host_targets()
    try:
        check_device(machine.device.runtime, machine.name, machine.needs)
    except UnsupportedError:
        return False
    return True
