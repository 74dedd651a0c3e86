"""The module of JavaScript that launches exported kernels of WebGPU."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from convsmith.exporter.device_build import DeviceKernel
from convsmith.exporter.interface import WORKSPACE, EntryUse, Interface

__all__ = ["webgpu_module_text"]

_CLASSES = Path(__file__).with_name("webgpu_kernel.js")
_ENABLED = re.compile(r"^enable (\w+);", re.MULTILINE)
"""The directives of a module of WGSL for features that a device must have."""
_WORD = 4
"""Bytes of an element of an array of WGSL, of which buffers and copies to them are whole numbers."""
_HEAD = """\
// {library}: kernels compiled by convsmith for WebGPU. A program runs one as
//
//   import {{ {kernel} }} from "./{library}.js";
//   const loaded = await {kernel}.load(device);  // a GPUDevice
//{packing}   loaded.run({{ {arrays} }});  // instances of GPUBuffer
"""


def webgpu_module_text(library: str, kernels: Sequence[DeviceKernel]) -> str:
    """Return the text of an ES module that exports a `Kernel` for each of the ``kernels``."""
    first = kernels[0]
    names = [p.name for p in first.interface.parameters if p.name != WORKSPACE and not p.of]
    packed = [p.operand for p in first.interface.packings]
    packing = f"   const packed = loaded.pack({{ {', '.join(packed)} }});  // once\n//" if packed else ""
    arrays = [*names, *(["...packed"] if packed else [])]
    head = _HEAD.format(library=library, kernel=first.name, packing=packing, arrays=", ".join(arrays))
    return head + _CLASSES.read_text() + "".join(map(_exported, kernels))


def _exported(kernel: DeviceKernel) -> str:
    interface = kernel.interface
    every = [*interface.parameters, *(p for packing in interface.packings for p in packing.parameters)]
    functions: dict[str, list[dict[str, Any]]] = {}
    for made, _ in kernel.functions:
        name = "run" if isinstance(made, Interface) else f"pack {made.operand}"
        functions[name] = [_step(kernel, use) for use in made.uses]
    constants = {name: base64.b64encode(x + bytes(-len(x) % _WORD)).decode() for name, x in kernel.constants.items()}
    ((end, text),) = kernel.code.items()
    code, features = f"{kernel.name}{end}", _ENABLED.findall(text.decode())
    sizes = {p.name: -(-p.nbytes // _WORD) * _WORD for p in every if not p.of and p.name != WORKSPACE}
    values = (code, sizes, functions, constants, features)
    texts = ",\n  ".join(json.dumps(x) for x in values)
    return f"\n// {kernel.problem}\nexport const {kernel.name} = new Kernel(\n  {texts},\n);\n"


def _step(kernel: DeviceKernel, use: EntryUse) -> dict[str, Any]:
    return {"entry": use.entry.symbol, "groups": list(use.entry.launch.grid), "arrays": [*_arrays(kernel, use)]}


def _arrays(kernel: DeviceKernel, use: EntryUse) -> Iterator[dict[str, Any]]:
    """Yield the memory of the arguments of an entry. A part of an array has a buffer of its own, because a binding
    begins at a multiple of more bytes than the parts do.
    """
    names = [*kernel.constants]
    for a in use.entry.arguments:
        place = kernel.place(a, use)
        row: dict[str, Any] = {"parameter": place.parameter, "part": place.offset, "bytes": place.nbytes}
        yield row if place.constant is None else {**row, "constant": names[place.constant]}
