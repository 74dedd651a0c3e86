"""Exported micro-kernels, called from C: under XNNPACK's conditions, at the ends of pages, and by their examples."""

from __future__ import annotations

import ctypes
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from emulated import skip_without_emulator
from exported import run, shared_library, tool

import convsmith as cs
from convsmith.cli.main import main
from convsmith.codegen import llvm_bind
from convsmith.emulate.image import Image
from convsmith.emulate.processor import CODE_ALIGNMENT
from convsmith.emulate.processors import Fault, processor_for
from convsmith.emulate.qemu import AARCH64, HEXAGON
from convsmith.exporter.files import FORMATS, ExportedLibrary
from convsmith.exporter.micro_kernel import ExportedMicroKernel, MicroFunction
from convsmith.frontend.micro_kernel import Weights
from convsmith.layout.block import ABSENT
from convsmith.machine.registry import host_targets
from convsmith.runtime.object_code import ObjectCode

sys.path.insert(0, str(Path(__file__).parent))
from cases import Case, multipass, unipass
from setups import Array, Setup, check, check_ends, some

ISAS = [t.name for t in host_targets()]
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1")
KINDS = (
    "f32_dwconv_up2x9", "f32_dwconv_up24x3", "f16_dwconv_up8x4", "bf16_dwconv_up16x9", "qs8_dwconv_fp32_up6x3",
    "qu8_dwconv_rndnu_up16x9", "f32_dwconv_5f5m5l16c8s4r", "qs8_dwconv_rndnu_2f1m2l4c2s1r",
)  # fmt: skip
FUNCTION = "xnn_f32_dwconv_minmax_ukernel_9p8c__avx512f"


class ByFunctions:
    """The exported functions of a micro-kernel as a callable on arrays."""

    def __init__(self, library: ExportedLibrary) -> None:
        (made,) = library.kernels
        assert isinstance(made, ExportedMicroKernel)
        self.made, self.kernel, self.name = made, made.kernel, made.name
        self.loaded = shared_library(library)

    def pack(self, kernel: Array, bias: Array, scale: Array | None) -> Weights:
        m, (channels, taps) = self.kernel, kernel.shape
        per_tap, beside = self.made.channel_bytes
        size = -(-channels // m.channel_tile) * m.channel_tile * (beside + m.pointers(taps) * per_tap)
        memory = np.full(size + 64, 0xA5, np.uint8)
        self._call(self.made.pack, {"channels": channels, "kernel_size": taps, "kernel": np.ascontiguousarray(kernel),
                                    "bias": bias, "scale": scale, "weights": memory})  # fmt: skip
        assert (memory[size:] == 0xA5).all(), "something is written behind the weights"
        return Weights(m.name, channels, taps, memory[:size].copy())

    def __call__(self, *, weights: Weights, params: Any, **given: Any) -> None:
        words = np.array(params, np.int32 if self.kernel.quantised else np.float32)
        self._call(
            self.made.main, {**given, "weights": weights.buffer, "params": words, "kernel_size": weights.kernel_size}
        )

    def _call(self, function: MicroFunction, given: dict[str, Any]) -> None:
        """Pass numbers as `size_t`, and arrays as their addresses, in the order of the declaration."""
        passed = [
            ctypes.c_size_t(given[p.name]) if p.is_size else ctypes.c_void_p(given[p.name].ctypes.data)
            for p in function.parameters
        ]
        getattr(self.loaded, function.symbol)(*passed)


@pytest.mark.sampled(16, wide=1, every="name isa")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", KINDS)
def test_functions_compute_what_xnnpack_asks_for(name: str, isa: str, tmp_path: Path) -> None:
    k = ByFunctions(cs.export(name, tmp_path, target=isa))
    m = k.kernel
    cases = multipass(*m.taps, m.channel_tile) if m.multipass else unipass(m.channel_tile, m.taps[0], m.type == "qu8")
    for seed, case in enumerate(some(cases, 60)):
        check(k, case, seed)


@pytest.mark.sampled(8, "isa", wide=1, every="name")
@pytest.mark.parametrize("isa", [ISAS[0], "generic"])
@pytest.mark.parametrize("name", KINDS)
def test_functions_read_nothing_beyond_an_end(name: str, isa: str, tmp_path: Path) -> None:
    k = ByFunctions(cs.export(name, tmp_path, target=isa))
    for channels in (1, 3, 8, 17, 33):
        check_ends(k, channels)


@pytest.mark.sampled(9, "form", wide=1, every="name")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", (*KINDS, FUNCTION))
def test_the_example_checks_itself_under_sanitizers(name: str, form: str, tmp_path: Path) -> None:
    library = cs.export(name, tmp_path, format=form)
    example = tmp_path / "example"
    sanitize = "-fsanitize=address,undefined"
    run(tool("gcc"), *STRICT, sanitize, tmp_path / "example.c", *library.code, "-o", example)
    assert re.fullmatch(rf"{name}: right, [\d.]+ us a row\n", run(example))
    run(tool("g++"), "-std=c++11", *STRICT[1:], "-fsyntax-only", "-x", "c++", library.header)


def test_the_example_finds_wrong_results(tmp_path: Path) -> None:
    """Weights that are packed for pointers in another order give other results."""
    library = cs.export(KINDS[0], tmp_path)
    text = (tmp_path / "example.c").read_text(encoding="utf-8")
    assert "x * step + j * kh + i]" in text
    (tmp_path / "example.c").write_text(text.replace("x * step + j * kh + i]", "x * step + i * kw + j]"))
    run(tool("gcc"), *STRICT, tmp_path / "example.c", *library.code, "-o", tmp_path / "example")
    with pytest.raises(AssertionError, match=r"f32_dwconv_up2x9: \d+ of \d+ results are wrong"):
        run(tmp_path / "example")


def test_cmake_builds_a_library_of_several(tmp_path: Path) -> None:
    library = cs.export([KINDS[0], FUNCTION, KINDS[0]], tmp_path, name="depthwise")
    assert [k.name for k in library.kernels] == [KINDS[0], FUNCTION, f"{KINDS[0]}_2"]
    run(tool("cmake"), "-S", tmp_path, "-B", tmp_path / "build")
    run(tool("cmake"), "--build", tmp_path / "build")
    assert run(tmp_path / "build" / "depthwise_example").count(": right, ") == 3


def test_the_function_has_the_name_that_was_asked_for(tmp_path: Path) -> None:
    """A name of XNNPACK's function stays, one of its files becomes the name here, and a given name comes first."""
    for given, options, name in (
        (FUNCTION, {}, FUNCTION), ("f32-dwconv-9p8c-minmax-avx512f.c", {}, "f32_dwconv_up8x9"),
        (FUNCTION, {"name": "mine"}, "mine"), (cs.micro_kernel(KINDS[0]), {"prefix": "net"}, f"net_{KINDS[0]}"),
    ):  # fmt: skip
        library = cs.export(given, tmp_path, **options)
        (kernel,) = json.loads(library.manifest.read_text())["kernels"]
        assert kernel["name"] == name and [f["symbol"] for f in kernel["functions"]] == [f"{name}_pack", name]
        names = [p["name"] for p in kernel["functions"][1]["parameters"]]
        assert names == [
            "channels", "output_width", "input", "weights", "output", "input_stride", "output_increment",
            "input_offset", "zero", "params",
        ]  # fmt: skip


def test_the_command_writes_the_files(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["export", FUNCTION, "-o", str(tmp_path / "x"), "--target", "avx2"])
    assert result.exit_code == 0 and result.output.startswith(f"{FUNCTION}  f32_dwconv_up8x9, avx2\n")
    for more in (["--threads", "2"], ["--weights", "w.npy"], ["--built-in"], ["--config", "x"], ["--dt=f32"]):
        result = CliRunner().invoke(main, ["export", FUNCTION, "-o", str(tmp_path / "x"), *more])
        assert result.exit_code and "whose name encodes every decision" in result.output, more


def test_requests_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(cs.UsageError, match="1 of 2 are micro-kernels; legal are libraries of one kind each"):
        cs.export([KINDS[0], "mb1ic8ih6oc8kh3"], tmp_path)
    with pytest.raises(cs.UsageError, match="threads is given for a micro-kernel, whose name encodes every decision"):
        cs.export(KINDS[0], tmp_path, threads=2)
    with pytest.raises(cs.UnsupportedError, match="a micro-kernel is a function of a CPU, and sm_80 is a device"):
        cs.export(KINDS[0], tmp_path, target="sm_80")
    with pytest.raises(cs.UsageError, match="legal are object, source, static-library"):
        cs.export(KINDS[0], tmp_path, format="module")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [
    "f32_dwconv_up2x9", "qs8_dwconv_fp32_up8x9", "f32_dwconv_2f2m2l8c4s1r",
    pytest.param("qs8_dwconv_fp32_up32x9", marks=pytest.mark.wide),  # LLVM takes half a minute
])  # fmt: skip
@pytest.mark.parametrize("target, emulator", [("hexagon+v68", HEXAGON), ("aarch64", AARCH64)], ids=["hexagon", "arm"])
def test_functions_compute_in_the_emulated_machine(target: str, emulator: Any, name: str, tmp_path: Path) -> None:
    """Addresses and sizes have the machine's words; no other memory can be accessed."""
    (made,) = cs.export(name, tmp_path, target=target).kernels
    assert isinstance(made, ExportedMicroKernel)
    skip_without_emulator(made.machine)
    m, bits = made.kernel, made.code.machine.address_bits
    s = Setup(m, Case("emulated", 37, 3, width=2), 5)
    image = Image(emulator.page)
    code = ObjectCode(made.code.object)
    functions = {symbol: at for symbol, at in emulator.library().items() if symbol in made.needs}
    start = image.reserve(code.size, "execute", CODE_ALIGNMENT)
    image.write(start, code.at(start, functions))
    per_tap, beside = made.channel_bytes
    size = -(-37 // m.channel_tile) * m.channel_tile * (beside + m.pointers(3) * per_tap)
    item = s.dtype.itemsize
    zero, source = (image.place(x.tobytes(), "read", item) for x in (s.zero, s.source))
    entries = [zero if e == ABSENT else source + int(e) * item for e in s.entries]
    table = np.array(entries, f"<u{bits // 8}").tobytes()
    words = np.array(s.params, np.int32 if m.quantised else np.float32).tobytes()
    at = {
        "weights": image.place(bytes(size), "write", 128), "output": image.place(bytes(74 * item), "write", item),
        "buffer": image.place(bytes(37 * 4), "write", 4), "zero": zero, "params": image.place(words, "read", 4),
        "input": image.place(table, "read", 8), "kernel": image.place(s.kernel.tobytes(), "read", item),
        "bias": image.place(s.bias.tobytes(), "read", s.bias.itemsize), "channels": 37, "kernel_size": 3,
        "output_width": 2, "input_stride": s.stride * bits // 8, "output_increment": 0, "input_offset": 0,
    }  # fmt: skip
    if s.scale is not None:
        at["scale"] = image.place(s.scale.tobytes(), "read", 4)
    lines = [f'target triple = "{made.machine.triple}"']
    for n, f in enumerate((made.pack, made.main)):
        passed = ", ".join(f"i{bits} {at[p.name]}" for p in f.parameters)
        lines += [
            f"declare void @{f.symbol}({', '.join([f'i{bits}'] * len(f.parameters))})",
            f"define void @call{n}(ptr %block, i{bits} %part, i{bits} %parts) nounwind {{",
            f"  call void @{f.symbol}({passed})", "  ret void", "}",
        ]  # fmt: skip
    machine = made.machine
    text = "\n".join(lines)
    driver = ObjectCode(llvm_bind.object_code(text, machine.triple, machine.cpu, machine.features))
    place = image.reserve(driver.size, "execute", CODE_ALIGNMENT)
    image.write(place, driver.at(place, {symbol: start + code.symbols[symbol] for symbol in made.symbols}))
    block = image.place(bytes(8), "read", 8)
    for n in range(2):
        image.call(place + driver.symbols[f"call{n}"], block)
    image.result(at["output"], 74 * item)
    found = emulator.emulate(image, processor_for(machine.needs, emulator.processors))
    assert not isinstance(found, Fault), found
    assert (np.frombuffer(found, s.dtype).reshape(2, 37) == s.truth).all()
