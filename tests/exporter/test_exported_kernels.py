"""Exported kernels compute what the reference does, without any library, on this machine and on emulated ones."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from emulated import skip_without_emulator
from exported import check_called, check_emulated_calls, run, shared_library, tool

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.codegen.binder import element_type
from convsmith.codegen.library_functions import PROVIDED, library_text
from convsmith.emulate.qemu import AARCH64, HEXAGON
from convsmith.exporter.files import ExportedLibrary
from convsmith.exporter.library import kernels_for
from convsmith.machine.registry import target as known_target
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import Problem

INDIRECT = "--lane=oc --register=ow:4,oc:16 --reduce=kh,kw,ic --realise=indirection"
LINES = {
    "plain": "mb2ic8ih5iw6oc8kh3kw3ph1pw1",
    "bias": "--dir=FWD_B --stag=axb --dtag=axb mb1ic8ih5oc24kh3ph1",
    "groups": "--stag=axb --dtag=axb g4mb1ic8ih6oc12kh3ph1",
    "depthwise": "--stag=axb --dtag=axb g24mb1ic24ih9oc24kh3sh2ph1",
    "1D": "mb1ic5iw19oc7kw3dw1pw2",
    "3D": "mb1ic3id4ih5iw6oc5kd2kh3kw3pd1ph1pw1",
    "blocked": "--stag=aBcd16b --dtag=aBcd16b mb1ic20ih5oc20kh3ph1",
    "bf16": "--dt=bf16 mb1ic8ih5oc16kh3ph1",
    "f16": "--dt=f16 mb1ic8ih5oc16kh3ph1",
    "f64": "--dt=f64 mb1ic8ih5oc16kh3ph1",
    "bytes": "--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic20ih6oc20kh3ph1",
    "scales": "--dt=u8:s8:u8 --attr-scales=src:common:0.5+wei:per_oc+dst:common:2 --attr-zero-points=src:common:2 "
              "mb1ic16ih6oc16kh3ph1",
    "post-ops": "--dir=FWD_B --attr-post-ops=sum+relu+add:f32:per_oc mb1ic8ih5oc8kh3ph1",
    "gradient of the source": "--dir=BWD_D --accuracy=strict mb1ic8ih6oc8kh3sh2ph1",
    "gradient of the weights": "--dir=BWD_WB mb2ic8ih6oc8kh3ph1",
    "deconvolution": "--deconv mb1ic8ih5oc8oh10kh4sh2ph1",
    "product": "--matmul 33x20:20x17",
    "chain": "mb1ic4ih6oc8kh1 -> --attr-post-ops=relu g8mb1ic8ih6oc8kh3ph1 -> mb1ic8ih6oc4kh1",
}  # fmt: skip
"""Problems of every direction, rank and data type, with the arrays that a kernel can have."""
PARTS = (1, 3)


def weights_in(problem: Problem, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of the weights, which can be built in."""
    return {t.name: arrays[t.name] for t in problem.inputs if t.holds == "wei"}


def exported(problem: Problem, directory: Path, built_in: bool, **options: object) -> tuple[ExportedLibrary, dict]:
    """The library of a problem, and arrays for a call."""
    arrays = random_arrays(problem)
    library = cs.export(
        problem, directory, name="layer", weights=weights_in(problem, arrays) if built_in else None, **options
    )
    return library, arrays


@pytest.mark.sampled(36)
@pytest.mark.parametrize("built_in", (False, True))
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("case", LINES)
def test_calls_are_exact(case: str, parts: int, built_in: bool, tmp_path: Path) -> None:
    problem = parse_problem(LINES[case])
    if built_in and not weights_in(problem, random_arrays(problem)):
        built_in = False
    library, arrays = exported(problem, tmp_path, built_in, threads=parts)
    (kernel,) = library.kernels
    loaded = shared_library(library)
    for parallel in (False, True):
        check_called(kernel, loaded, problem, arrays, parallel)


@pytest.mark.parametrize("built_in", (False, True))
def test_transforms_give_the_bits_that_the_kernel_gives_here(built_in: bool, tmp_path: Path) -> None:
    problem = parse_problem("mb1ic16ih12oc16kh3ph1")
    library, arrays = exported(problem, tmp_path, built_in, threads=4)
    kernel = cs.compile(problem, threads=4)
    roles = {a.role for use in library.kernels[0].interface.uses for a in use.entry.arguments}
    assert kernel.transforms and "scratch" in roles and library.kernels[0].interface.threads > 1
    for use in library.kernels[0].interface.uses:  # each thread has scratch memory of its own
        places = sorted(use.places.items(), key=lambda item: item[1])
        ends = [*(place for _, place in places[1:]), library.kernels[0].interface.workspace]
        memory = {a.name: a for a in use.entry.arguments}
        for (name, place), end in zip(places, ends):
            a = memory[name]
            count = use.entry.launch.threads if a.role == "scratch" else 1
            assert place + a.size * element_type(a).itemsize * count <= end, name
    truths = kernel.run(**{name: np.array(x) for name, x in arrays.items()})
    check_called(library.kernels[0], shared_library(library), problem, arrays, True, truths)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("words", "value"),
    (
        ("--register=ow:3,oc:8 --realise=pad_copy", np.inf),
        ("--register=oc:8 --pack=wei_w --winograd=oh:4,ow:4", np.inf),
        ("--register=oc:8 --pack=wei_w --winograd=oh:4,ow:4", 3e38),
    ),
)
def test_built_in_weights_beyond_a_limit_have_a_kernel_without_it(words: str, value: float, tmp_path: Path) -> None:
    """Weights of a call may not be beyond it, as the header says, and the config stays."""
    problem = parse_problem("mb1ic8ih6oc16kh3ph1")
    config = f"--target=generic --lane=oc {words}"
    arrays = {"src": np.ones((1, 8, 6, 6), np.float32), "wei": np.ones((16, 8, 3, 3), np.float32)}
    kernels = {}
    for name, change, built_in in (("call", 1, False), ("ordinary", 1, True), ("beyond", value, True)):
        arrays["wei"][3, 4, 1, 1] = change
        made = cs.export(
            problem, tmp_path / name, name="layer", config=config, weights=arrays["wei"] if built_in else None
        )
        (kernels[name],) = made.kernels
        assert ("wei must hold" in made.header.read_text()) is not built_in
    assert kernels["call"].config == kernels["ordinary"].config == config
    limits = kernels["beyond"].interface.artifact.limits
    assert not limits and kernels["beyond"].config != config
    strict = cs.compile(problem, target="generic", threads=1, accuracy="strict")
    truths = {"dst": strict.run(**arrays)["dst"]}
    assert np.isfinite(truths["dst"]).all() == (value == 3e38)
    check_called(kernels["beyond"], shared_library(made), problem, arrays, False, truths)


@pytest.mark.parametrize(
    "line",
    (
        "--stag=axb --dtag=axb mb1ic8ih5iw9oc16kh3kw3ph1pw1",
        "--stag=axb --dtag=axb --dt=u8:s8:s32 --attr-zero-points=src:common:2 mb1ic16ih8oc16kh3ph1",
        "--stag=axb --dtag=axb --dt=u8:s8:s32 --attr-zero-points=src:per_dim_1 mb1ic20ih8oc16kh3ph1",
    ),
)
@pytest.mark.parametrize("parts", PARTS)
def test_tables_of_pointers_are_written_by_each_call(line: str, parts: int, tmp_path: Path) -> None:
    problem = parse_problem(line)
    library = cs.export(
        problem, tmp_path, name="layer", config=f"--target=generic {INDIRECT.replace('oc:16', 'oc:8')}", threads=parts
    )
    (kernel,) = library.kernels
    assert any(a.role == "table" for use in kernel.interface.uses for a in use.entry.arguments)
    arrays = random_arrays(problem)
    arrays |= {name: np.abs(x) for name, x in arrays.items() if "zero_points" in name}
    loaded = shared_library(library)
    for _ in range(2):  # at other addresses
        check_called(kernel, loaded, problem, arrays, parallel=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ("object", "source", "static-library"))
def test_each_form_is_the_same_code(form: str, tmp_path: Path) -> None:
    problem = parse_problem(LINES["scales"])
    library, arrays = exported(problem, tmp_path, False, format=form)
    check_called(library.kernels[0], shared_library(library), problem, arrays, False)


def test_optional_arrays_may_be_given(tmp_path: Path) -> None:
    problem = parse_problem(LINES["scales"])
    library, arrays = exported(problem, tmp_path, False)
    loaded = shared_library(library)
    for factor in (1, 2):
        arrays["scales_dst"] = arrays["scales_dst"] * factor
        check_called(library.kernels[0], loaded, problem, arrays, False, null=False)


def test_several_kernels_share_a_library(tmp_path: Path) -> None:
    problems = [parse_problem(LINES[case]) for case in ("plain", "bf16", "bytes", "plain")]
    library = cs.export(problems, tmp_path, name="layers", threads=1)
    names = [kernel.name for kernel in library.kernels]
    assert len(set(names)) == 4 and names[3] == f"{names[0]}_2"
    loaded = shared_library(library)
    for kernel, problem in zip(library.kernels, problems):
        check_called(kernel, loaded, problem, random_arrays(problem), False)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("level", ("generic", "avx2", "avx512_amx", "aarch64", "hexagon+v68"))
def test_code_names_no_function_of_a_library(level: str, tmp_path: Path) -> None:
    lines = (
        "--attr-post-ops=gelu_erf+exp+log+logistic+sqrt+pow:1:0.3+round+mish+elu:1+soft_relu:1 mb1ic8ih5oc8kh3ph1",
        "mb64ic1ih3oc64kh3", "--dt=f64 mb1ic8ih5oc8kh3ph1",
    )  # fmt: skip
    library = cs.export(list(lines), tmp_path, target=level, format="object", threads=2)
    for file, kernel in zip(library.code, library.kernels):
        assert kernel.needs == tuple(x for x in kernel.needs if x.startswith("__hexagon"))
        if shutil.which("llvm-nm") or level != "hexagon+v68":
            nm = tool("nm" if level in ("generic", "avx2", "avx512_amx") else "llvm-nm")
            assert set(run(nm, "-u", file).split()) - {"U", *kernel.needs} == set()
            visible = re.findall(r"^\S+ [A-Z] (\S+)", run(nm, "-g", "--defined-only", file), re.MULTILINE)
            assert set(visible) == set(kernel.interface.symbols)
    if level == "generic":  # which calls them, so they are part of the code
        assert {"fma", "fmaf", "rintf"} <= set(re.findall(r"\w+", library.kernels[0].code.assembly().decode()))


def test_functions_of_the_mathematical_library_round_once(tmp_path: Path) -> None:
    import ctypes

    machine = known_target("generic")
    texts = [library_text(name, machine.triple, "i64") for name in PROVIDED]
    (tmp_path / "own.o").write_bytes(llvm_bind.joined_code(texts, PROVIDED, machine.triple, "", ""))
    run(tool("gcc"), "-shared", "-nostdlib", "-o", tmp_path / "own.so", tmp_path / "own.o")
    own, system = ctypes.CDLL(str(tmp_path / "own.so")), ctypes.CDLL("libm.so.6")
    rng = np.random.default_rng(0)
    for name, type_, of in (("fmaf", np.float32, ctypes.c_float), ("fma", np.float64, ctypes.c_double)):
        nearest, lower = (name.replace("fma", other) for other in ("rint", "floor"))
        for library in (own, system):
            for function, count in ((name, 3), (nearest, 1), (lower, 1)):
                f = getattr(library, function)
                f.restype, f.argtypes = of, [of] * count
        for n in range(3000):
            a, b = (type_(rng.standard_normal() * 2.0 ** rng.integers(-8, 8)) for _ in "ab")
            near = -a * b * (1 + rng.integers(-3, 4) * 2.0 ** -rng.integers(1, 60))
            c = type_(near if n % 2 else rng.standard_normal() * 2.0 ** rng.integers(-60, 60))
            assert getattr(own, name)(a, b, c) == getattr(system, name)(a, b, c), (a, b, c)
            x = type_(rng.integers(-9, 9) / 2 if n % 2 else c * 2.0**40)
            for rounded in (nearest, lower):
                assert getattr(own, rounded)(x) == getattr(system, rounded)(x), (rounded, x)
    for x, y, c in (  # the product lies between two numbers, and c decides
        (1 + 2.0**-12, 1 + 2.0**-12, 2.0**-80), (1 + 2.0**-12, 1 + 2.0**-12, -(2.0**-80)),
        (1 + 2.0**-12, 1 + 3 * 2.0**-12, 2.0**-80), (1 + 2.0**-12, 1 + 3 * 2.0**-12, -(2.0**-80)),
    ):  # fmt: skip
        for sign in (1, -1):
            assert own.fmaf(sign * x, y, sign * c) == system.fmaf(sign * x, y, sign * c), (x, y, c)
            wide = (sign * (1 + (x - 1) * 2.0**-14), 1 + (y - 1) * 2.0**-15, sign * c * 2.0**-50)
            assert own.fma(*wide) == system.fma(*wide), wide
    special = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0)
    for a in special:
        for c in special:
            found, right = own.fma(a, 2.0, c), system.fma(a, 2.0, c)
            assert found == right or (found != found and right != right), (a, c)


EMULATED = {"aarch64": AARCH64, "hexagon": HEXAGON}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("built_in", (False, True))
@pytest.mark.parametrize("case", ("plain", "bytes", "scales", "post-ops", "chain", "gradient of the weights"))
@pytest.mark.parametrize("target", ("aarch64-linux-gnu+dotprod", "hexagon-unknown-none-elf+v68"))
def test_calls_are_exact_in_the_emulated_machine(target: str, case: str, built_in: bool, tmp_path: Path) -> None:
    problem = parse_problem(LINES[case])
    if built_in and not weights_in(problem, random_arrays(problem)):
        built_in = False
    library, arrays = exported(problem, tmp_path, built_in, target=target, threads=1)
    (kernel,) = library.kernels
    emulator = EMULATED[target.partition("-")[0]]
    skip_without_emulator(kernel.machine)
    check_emulated_calls(kernel, problem, arrays, emulator)


def test_assembly_for_another_machine_is_the_same_code(tmp_path: Path) -> None:
    """An assembler reads it."""
    problem = parse_problem(LINES["bytes"])
    library, arrays = exported(problem, tmp_path, True, target="aarch64-linux-gnu+i8mm", threads=1, format="source")
    (kernel,) = library.kernels
    skip_without_emulator(kernel.machine)
    m, made = kernel.machine, tmp_path / "assembled.o"
    features = m.features.replace("fullfp16", "v8.2a,+fullfp16")
    run(tool("llvm-mc"), f"-triple={m.triple}", f"-mattr={features}", "-filetype=obj", library.code[0], "-o", made)
    check_emulated_calls(kernel, problem, arrays, AARCH64, made.read_bytes())


def test_tables_in_the_emulated_machine() -> None:
    problem = parse_problem("--stag=axb --dtag=axb --dt=u8:s8:s32 --attr-zero-points=src:common:2 mb1ic16ih8oc16kh3ph1")
    from convsmith.exporter.build import build_kernel

    config = "--target=hexagon+v68 --lane=oc --register=ow:2,oc:32 --reduce=kh,kw,ic --realise=indirection"
    (made,) = kernels_for(problem, "hexagon+v68", 1, config)
    kernel = build_kernel(made, "layer", {})
    assert any(a.role == "table" for use in kernel.interface.uses for a in use.entry.arguments)
    skip_without_emulator(kernel.machine)
    check_emulated_calls(kernel, problem, random_arrays(problem), HEXAGON)
