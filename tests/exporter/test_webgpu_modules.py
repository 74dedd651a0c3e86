"""Exported kernels of WebGPU: a page imports the module, packs the weights and computes what the reference computes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from emulated import skip_without_emulator

import convsmith as cs
from convsmith.codegen.artifact import Argument
from convsmith.emulate.browser import opened
from convsmith.exporter.device_build import DeviceKernel
from convsmith.exporter.files import ExportedLibrary
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.problem.reference import reference
from convsmith.runtime.arrays import Array, ArraySpec

LINES = {
    "parts and packed weights": "mb1ic16ih14oc32kh3ph1",
    "bias and activation": "--dir=FWD_B --attr-post-ops=relu mb2ic3ih9oc8kh3sh2ph1",
    "gradient of weights": "--dir=BWD_WB mb2ic8ih9oc12kh3ph1",
    "chain": "mb1ic4ih6oc8oh6kh1 -> g8mb1ic8ih6oc8oh6kh3ph1",
    "arrays that do not fill their last word": "--dt=u8:s8:u8 --attr-post-ops=relu mb1ic5ih7oc3kh3ph1",
    "halves": "--dt=bf16:bf16:bf16 --dir=FWD_B mb1ic3ih5oc5kh3ph1",
}
CALL = """
const [module, code, name, given, result] = arguments, done = arguments[arguments.length - 1];
(async () => {
  const url = URL.createObjectURL(new Blob([module], { type: "text/javascript" }));
  const kernel = (await import(url))[name];
  const device = await (await navigator.gpu.requestAdapter()).requestDevice({ requiredFeatures: kernel.features });
  const loaded = await kernel.load(device, code);
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
  const arrays = {};
  for (const [name, text] of Object.entries(given)) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    if (bytes.length !== kernel.bytes[name]) throw new Error(`${name} has ${bytes.length} bytes`);
    arrays[name] = device.createBuffer({ size: bytes.length, usage });
    device.queue.writeBuffer(arrays[name], 0, bytes);
  }
  const packed = loaded.pack(arrays);
  // The second call finds the packed weights and the kernel's own arrays as the first has left them.
  for (let call = 0; call < 2; call++) loaded.run({ ...arrays, ...packed });
  const size = arrays[result].size;
  const copy = device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  const commands = device.createCommandEncoder();
  commands.copyBufferToBuffer(arrays[result], 0, copy, 0, size);
  device.queue.submit([commands.finish()]);
  await copy.mapAsync(GPUMapMode.READ);
  return [...new Uint8Array(copy.getMappedRange())];
})().then(done, (error) => done(String(error)));
"""


@pytest.fixture(autouse=True)
def browser() -> None:
    """Skips where there is no Chromium."""
    skip_without_emulator(target("webgpu"))


def exported(line: str, folder: Path, level: str = "webgpu") -> ExportedLibrary:
    return cs.export(line, folder, target=level, name="layer")


QUADS = "--stag=axb --dtag=axb --dt=u8:s8:u8 --attr-post-ops=relu mb1ic32ih6oc16kh3ph1"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", LINES)
def test_a_page_computes_what_the_reference_computes(kind: str, tmp_path: Path) -> None:
    check(LINES[kind], tmp_path, "webgpu")


def test_a_page_computes_by_quads(tmp_path: Path) -> None:
    skip_without_emulator(target("webgpu+subgroups"))
    check(QUADS, tmp_path, "webgpu+subgroups")


def test_a_device_without_a_feature_is_refused(tmp_path: Path) -> None:
    exported(QUADS, tmp_path, "webgpu+subgroups")
    texts = [(tmp_path / f"layer.{end}").read_text() for end in ("js", "wgsl")]
    call = CALL.replace("requiredFeatures: kernel.features", "requiredFeatures: []")
    found = opened().driver.execute_async_script(call, *texts, "layer", {}, "dst")
    assert found == "TypeError: layer.wgsl needs a device with the feature subgroups"


def check(line: str, tmp_path: Path, level: str) -> None:
    """A module for a level, imported by a page, computes what the reference computes."""
    problem = parse_problem(line)
    kernel = exported(line, tmp_path, level).kernels[0]
    assert isinstance(kernel, DeviceKernel)
    functions = (kernel.interface, *kernel.interface.packings)
    tensors = {p.name: p.tensor for made in functions for p in made.parameters if p.tensor is not None}
    arrays = random_arrays(problem, 3)
    truth = reference(problem, arrays)
    texts = [(tmp_path / f"layer.{end}").read_text() for end in ("js", "wgsl")]
    given = {name: stored(t, arrays.get(name)) for name, t in tensors.items()}
    for name, wanted in truth.items():
        found = opened().driver.execute_async_script(CALL, *texts, kernel.name, given, name)
        assert not isinstance(found, str), found
        spec = ArraySpec(tensors[name])
        result = np.ndarray(spec.shape, spec.dtype, np.array(found, np.uint8), 0, spec.strides)
        np.testing.assert_array_equal(result, wanted)
        assert found[spec.extent :] == [7] * (-spec.extent % 4)


def stored(tensor: Argument, x: Array | None) -> str:
    """The memory of an array, or of a result that is yet to be computed, in whole words, as base64."""
    spec = ArraySpec(tensor)
    memory = np.full(-(-spec.extent // 4) * 4, 7, np.uint8)
    if x is not None:
        np.ndarray(spec.shape, spec.dtype, memory, 0, spec.strides)[:] = x
    return base64.b64encode(memory).decode()


def test_the_files_of_a_library(tmp_path: Path) -> None:
    library = cs.export([*LINES.values()][:2], tmp_path, target="webgpu", name="net")
    names = [kernel.name for kernel in library.kernels]
    assert {p.name for p in tmp_path.iterdir()} == {"net.js", "net.json", *(f"{name}.wgsl" for name in names)}
    manifest = json.loads(library.manifest.read_text())
    assert [k["target"]["level"] for k in manifest["kernels"]] == ["webgpu"] * 2
    text = (tmp_path / "net.js").read_text()
    assert all(f"export const {name} = new Kernel(" in text for name in names)
