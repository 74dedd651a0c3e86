"""Libraries for devices: their C compiles without a device, and the examples run and find no wrong result.

The example for OpenCL runs on the driver for CPUs, that for CUDA on a driver that interprets PTX.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from exported import run, tool
from opencl_driver import require_opencl

import convsmith as cs
from convsmith.cli.main import main
from convsmith.codegen.artifact import Artifact
from convsmith.exporter.drivers import has_driver
from convsmith.exporter.files import ExportedLibrary
from convsmith.machine.registry import device_targets
from convsmith.runtime.opencl_drivers import cpu_driver

HERE = Path(__file__).parent
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1")
CUDA = Path("/usr/local/cuda/include")
LINE = "mb1ic8ih6oc16kh3ph1"
BYTES = "--dt=u8:s8:s8 --attr-zero-points=src:common:2 --stag=axb --dtag=axb mb1ic16ih5oc16kh3ph1"
LINES = {
    "plain": LINE,
    "bf16": "--dt=bf16 --stag=axb --dtag=axb mb1ic16ih6oc16kh3ph1",
    "f16": "--dir=BWD_D --dt=f16 mb1ic8ih5oc8kh3sh2ph1",
    "f8_e4m3": "--dt=f8_e4m3 --stag=axb --dtag=axb mb1ic16ih5oc16kh3",
    "f8_e5m2": "--dt=f8_e5m2 --stag=axb --dtag=axb mb1ic16ih5oc16kh3",
    "zero points": BYTES,
    "scales": "--dt=u8:s8:u8 --attr-scales=src:common:0.5+wei:per_oc+dst:common:2 --attr-zero-points=src:common:2 "
              "mb1ic16ih6oc16kh3ph1",
    "blocked": "--stag=aBcd16b --dtag=aBcd16b mb1ic20ih5oc20kh3ph1",
    "gelu": "--dir=FWD_B --attr-post-ops=sum+gelu_erf mb1ic8ih5oc8kh3ph1",
    "steps": "--dt=u8:s8:s32 --attr-post-ops=s32_rescale:3:7+s32_mulh:common:1234567890 mb1ic8ih5oc8kh3ph1",
    "gradient of the weights": "--dir=BWD_WB mb2ic8ih6oc8kh3ph1",
    "deconvolution": "--deconv mb1ic8ih5oc8oh10kh4sh2ph1",
    "product": "--matmul 33x20:20x17",
    "chain": "mb1ic4ih6oc8kh1 -> --attr-post-ops=relu g8mb1ic8ih6oc8kh3ph1 -> mb1ic8ih6oc4kh1",
}  # fmt: skip
"""Problems with the types, arrays, entries and steps that a launch and a naive nest can have."""


def exported(line: str | list[str], target: str, directory: Path) -> ExportedLibrary:
    return cs.export(line, directory, target=target, name="layer")


def run_opencl(directory: Path) -> str:
    """Build and run the example of a library on the driver for CPUs; what it prints."""
    driver = cpu_driver()
    assert driver is not None
    link = (f"-L{driver.parent}", f"-Wl,-rpath-link,{driver.parent}", "-lOpenCL", "-lm")
    run(tool("gcc"), "-std=c11", *STRICT, f"-I{HERE / 'headers'}", directory / "example.c", *link, "-o",
        directory / "example")  # fmt: skip
    (directory / "cpu.icd").write_text(f"{driver}\n")
    variables = {**os.environ, "OCL_ICD_VENDORS": str(directory), "LD_LIBRARY_PATH": str(driver.parent)}
    done = subprocess.run(
        ["./example"], cwd=directory, env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def run_cuda(directory: Path) -> str:
    """Build and run the example of a library on the driver that interprets PTX; what it prints."""
    run(tool("gcc"), "-std=c11", *STRICT, "-fPIC", "-shared", f"-I{HERE / 'headers'}", "-Dmain=example",
        directory / "example.c", HERE / "interpreted_cuda.c", "-lm", "-o", directory / "example.so")  # fmt: skip
    command = [sys.executable, HERE / "interpreted_cuda.py", "./example.so"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=240, check=False)
    return done.stdout + done.stderr


@pytest.mark.sampled(14)
@pytest.mark.parametrize("case", LINES)
def test_the_example_for_opencl_is_right(case: str, tmp_path: Path) -> None:
    require_opencl()
    library = exported(LINES[case], "opencl", tmp_path)
    assert [file.name for file in library.files] == ["layer.spv", "layer.h", "example.c", "layer.json"]
    assert run_opencl(tmp_path).startswith("layer: right, ")


def test_kernels_of_sub_groups_run_too(tmp_path: Path) -> None:
    require_opencl()
    exported("mb1ic16ih8oc32kh3ph1", "xe_hpg", tmp_path)
    assert run_opencl(tmp_path).startswith("layer: right, ")


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("--dt=bf16 --stag=axb --dtag=axb mb1ic64ih6oc32kh3ph1", "sm_90a"),
        ("--dt=bf16 --stag=axb --wtag=axb --dtag=axb mb1ic64ih4oc32kh1", "sm_90a"),
        pytest.param(
            "--dir=BWD_WB --dt=bf16 --stag=axb --dtag=axb mb8ic32ih6oc32kh3ph1", "sm_90a", marks=pytest.mark.wide
        ),
        (BYTES, "sm_90a"),
        ("--dt=s8:s8:s8 --stag=axb --dtag=axb --attr-scales=dst:common:2 mb1ic32ih5oc32kh3ph1", "sm_80"),
        ("mb1ic8ih5oc8kh3ph1", "sm_70"),
    ],
)
def test_the_example_for_cuda_is_right(line: str, target: str, tmp_path: Path) -> None:
    """Entries get their arrays, maps, constants and places in the workspace; PTX is loaded where machine code is not.
    """
    exported(line, target, tmp_path)
    assert run_cuda(tmp_path).startswith("layer: right, ")


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("to_bf16(acc)", "to_bf16(acc + 64)", r"layer: dst\[0\] is -?\d+, not -?\d+\nlayer: wrong, "),
        ("lower[] = {-1, -1}", "lower[] = {0, -1}", "layer: wrong, "),
        ("CUdeviceptr a2 = dst;", "CUdeviceptr a2 = src;", "layer: wrong, "),
        ("layer_pack(&m, wei,", "layer_pack(&m, wei + 8,", "status 1\n"),
        ('{"convsmith",', '{"other",', "status 500\n"),
    ],
    ids=["result", "border", "array", "alignment", "symbol"],
)
def test_the_example_finds_a_wrong_launch(old: str, new: str, what: str, tmp_path: Path) -> None:
    exported("--dt=bf16 --stag=axb --dtag=axb mb1ic64ih4oc32kh3ph1", "sm_90a", tmp_path)
    changed = 0
    for name in ("layer.h", "example.c"):
        text = (tmp_path / name).read_text()
        changed += text.count(old)
        (tmp_path / name).write_text(text.replace(old, new))
    assert changed == 1
    found = run_cuda(tmp_path)
    assert re.search(what, found), found


def test_an_optional_array_may_be_given(tmp_path: Path) -> None:
    """With another zero point than that of the line, the loops in C compute another result too."""
    exported(BYTES, "sm_80", tmp_path)
    text = (tmp_path / "example.c").read_text()
    call = "layer(&m, src, wei, 0, dst, workspace, stream)"
    assert text.count("host_zero_points_src[i] = (int32_t)2.0;") == 1 and text.count(call) == 2
    text = text.replace("(int32_t)2.0", "(int32_t)3.0").replace(call, call.replace(" 0,", " points,"))
    made = "CUdeviceptr points;\ncheck(cuMemAlloc(&points, 4));\n"
    made += "check(cuMemcpyHtoD(points, host_zero_points_src, 4));\n"
    first = text.index("    CUdeviceptr src;")
    (tmp_path / "example.c").write_text(text[:first] + made + text[first:])
    assert run_cuda(tmp_path).startswith("layer: right, ")


@pytest.mark.sampled(9)
@pytest.mark.parametrize("target", [t.name for t in device_targets() if has_driver(t)])
def test_the_c_of_every_device_is_legal(target: str, tmp_path: Path) -> None:
    lines = [LINE, "--dt=bf16 --stag=axb --dtag=axb mb1ic64ih6oc64kh3ph1", BYTES]
    if target == "sm_70":
        lines[1] = lines[1].replace("bf16", "f16")
    library = exported(lines, target, tmp_path)
    assert len({kernel.name for kernel in library.kernels}) == len(lines)
    own = f"-I{HERE / 'headers'}"
    folders = [own, f"-isystem{CUDA}"] if (CUDA / "cuda.h").exists() and target.startswith("sm_") else [own]
    for folder in folders:
        run(tool("gcc"), "-std=c11", *STRICT, "-fsyntax-only", folder, tmp_path / "example.c")
        run(tool("gcc"), "-std=c99", *STRICT, "-fsyntax-only", folder, "-x", "c", library.header)
        run(tool("g++"), "-std=c++11", *STRICT, "-fsyntax-only", folder, "-x", "c++", library.header)


NAMES = ("cuInit", "CUstream", "clFinish", "cl_mem", "small", "module", "m", "status", "queue", "stream", "to_bf16",
         "bits_f32_s32", "largest", "host_src", "true_dst", "a", "a_module", "a_maps", "a_load", "a_naive", "memory",
         "src_s", "check", "text_of", "malloc", "expected")  # fmt: skip
"""Names of nodes that mean something else in a launch header, an example, or the driver's header."""


@pytest.mark.parametrize("target", ["sm_80", "opencl"])
def test_names_that_mean_something_else(target: str, tmp_path: Path) -> None:
    lines = [f'--dt=bf16 mb1ic2ih3oc2kh1n"{name}"' for name in NAMES]
    library = cs.export(lines, tmp_path, target=target, name="net", prefix="")
    assert len({kernel.name.upper() for kernel in library.kernels}) == len(NAMES)
    run(tool("gcc"), "-std=c11", *STRICT, "-fsyntax-only", f"-I{HERE / 'headers'}", tmp_path / "example.c")


def test_the_manifest_says_all_of_a_launch(tmp_path: Path) -> None:
    library = exported("--dir=BWD_WB --dt=bf16 --stag=axb --dtag=axb mb32ic64ih14oc64kh3ph1", "sm_90a", tmp_path)
    manifest = json.loads(library.manifest.read_text())
    (kernel,) = manifest["kernels"]
    assert manifest["format"] == "module" and kernel["code"] == ["layer.cubin", "layer.ptx"]
    assert set(manifest["files"]) == {file.name for file in library.files}
    assert kernel["symbols"] == ["layer_load", "layer_tensor_maps", "layer", "layer_unload"]
    assert kernel["limits"].keys() == {"diff_dst"} and kernel["target"]["level"] == "sm_90a"
    parameters = {p["name"]: p for p in kernel["parameters"]}
    assert [*parameters][-1] == "workspace" and parameters["src"]["alignment"] == 16
    artifact: Artifact = library.kernels[0].interface.artifact
    assert [e["symbol"] for e in kernel["entries"]] == [e.symbol for e in artifact.steps.values()]
    main_, sums, _ = kernel["entries"]
    launch = artifact.entries["main"].launch
    assert (tuple(main_["grid"]), tuple(main_["group"]), main_["shared"]) == (launch.grid, launch.group, launch.shared)
    parts = next(a for a in main_["arguments"] if a["role"] == "shared")
    assert parts["memory"] == {"parameter": "workspace", "offset": 0} and parts["bytes"] % (2 * 73728) == 0
    assert parts["memory"] == next(a for a in sums["arguments"] if a["role"] == "shared")["memory"]
    assert parameters["workspace"]["bytes"] >= parts["bytes"]
    src, diff_dst = main_["maps"]
    assert (src["of"], src["function"], src["type"]) == (
        "src", "cuTensorMapEncodeIm2col", "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16"
    )  # fmt: skip
    assert src["sizes"] == [64, 14, 14, 32] and src["steps"] == [128, 1792, 25088] and src["lower"] == [-1, -1]
    assert diff_dst["upper"] == [0, 0] and diff_dst["form"][1].startswith("CU_TENSOR_MAP_SWIZZLE_")


def test_the_registers_of_a_thread_reach_the_compiler(tmp_path: Path) -> None:
    line = "--dt=bf16 --stag=axb --wtag=axb --dtag=axb mb32ic256ih14oc1024oh14kh1"
    library = exported(line, "xe_hpc", tmp_path)
    (kernel,) = json.loads(library.manifest.read_text())["kernels"]
    assert "--register_file=256" in kernel["config"] and [e["registers"] for e in kernel["entries"]] == [256]
    assert '"-cl-intel-256-GRF-per-thread", NULL, NULL);' in library.header.read_text()


@pytest.mark.parametrize(("target", "form"), [("sm_80", "= workspace + {};"), ("opencl", ", workspace, {}, ")])
def test_arrays_between_entries_have_places_of_their_own(target: str, form: str, tmp_path: Path) -> None:
    library = exported(BYTES, target, tmp_path)
    (kernel,) = json.loads(library.manifest.read_text())["kernels"]
    (whole,) = (p["bytes"] for p in kernel["parameters"] if p["name"] == "workspace")
    arguments = [a for e in kernel["entries"] for a in e["arguments"] if a["memory"]["parameter"] == "workspace"]
    places = {a["name"]: a["memory"]["offset"] for a in arguments}
    sizes = {a["name"]: a["bytes"] for a in arguments}
    (first, start), (second, end) = sorted(places.items(), key=lambda item: item[1])
    assert (start, sizes.keys()) == (0, {first, second}) and sizes[first] <= end <= whole - sizes[second]
    assert library.header.read_text().count(form.format(end)) == 2


def test_the_manifest_names_the_packing_entry(tmp_path: Path) -> None:
    library = exported("--dt=bf16 --stag=axb --dtag=axb mb1ic64ih6oc32kh3ph1", "sm_90a", tmp_path)
    (kernel,) = json.loads(library.manifest.read_text())["kernels"]
    packs = [e for e in kernel["entries"] if e["function"] == "layer_pack"]
    assert [a["memory"]["parameter"] for a in packs[0]["arguments"]] == ["wei", "packed_wei"]
    assert kernel["packings"][0]["symbol"] == "layer_pack"


def test_machine_code_alone_where_there_is_an_assembler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = cs.compile(LINE, target="sm_80")
    library = kernel.export(tmp_path / "both", name="layer")
    assert (tmp_path / "both" / "layer.cubin").read_bytes()[:4] == b"\x7fELF"
    assert library.code == (tmp_path / "both" / "layer.cubin", tmp_path / "both" / "layer.ptx")
    ptx = kernel.artifact.notes["ptx"].encode()
    object.__setattr__(kernel.artifact, "code", ptx)
    library = kernel.export(tmp_path / "ptx", name="layer")
    assert library.code == (tmp_path / "ptx" / "layer.ptx",) and library.code[0].read_bytes() == ptx


def test_requests_that_a_device_refuses(tmp_path: Path) -> None:
    def refused(code: str, message: str, problem: object = LINE, **options: object) -> None:
        with pytest.raises((cs.UsageError, cs.UnsupportedError), match=message) as error:
            cs.export(problem, tmp_path / "out", **{"target": "opencl", **options})
        assert error.value.code == code and not (tmp_path / "out").exists()

    refused("bad-format", "format 'object' is not legal; legal are module", format="object")
    refused("bad-format", "format 'module' is not legal; legal are object, source", target="generic", format="module")
    refused("bad-weights", "weights are built into the code of CPUs", weights=np.ones((16, 8, 3, 3), np.float32))
    mixed = [cs.compile(LINE, target=t, threads=1) for t in ("sm_80", "opencl")]
    refused("export", "kernels for sm_80, opencl run by different drivers", mixed)
    refused("export", "has no elements in its source", "mb0ic8ih6oc16kh3ph1")
    refused("export", "kernels of fixed sizes", cs.compile(LINE, target="opencl", dynamic="mb"))


def test_the_command_writes_a_module(tmp_path: Path) -> None:
    words = ["export", LINE, "--target", "sm_80", "--name", "layer", "-o", str(tmp_path)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    _, kernel, *files = done.stdout.splitlines()
    assert kernel.endswith(", sm_80")
    assert [line.rpartition("/")[2].split(maxsplit=1) for line in files] == [
        ["layer.cubin", "machine code"], ["layer.ptx", "code for later generations"],
        ["layer.h", "launch header for C and C++"], ["example.c", "example"], ["layer.json", "manifest"],
    ]  # fmt: skip
    done = CliRunner().invoke(main, [*words, "--format", "source"])
    assert done.exit_code == 2 and "format 'source' is not legal; legal are module" in done.stderr
