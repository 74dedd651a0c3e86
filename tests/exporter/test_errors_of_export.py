"""Requests that `export` refuses: class, code and text; and names and targets that it accepts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import convsmith as cs
from convsmith.cli.main import main
from convsmith.exporter.names import check_name, check_prefix, legal_name, unique_names
from convsmith.exporter.target import export_machine
from convsmith.machine.registry import device_targets, known_targets

LINE = "mb1ic8ih6oc16kh3ph1"
WEIGHTS = np.ones((16, 8, 3, 3), np.float32)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"target": "loongarch64-linux-gnu"}, "bad-target", "target 'loongarch64-linux-gnu' is unknown; known are "
                                                            "cpu, .*aarch64-linux-gnu.*levels avx512_amx_fp16"),
        ({"target": "x86_64-windows"}, "bad-target", "is unknown; known are cpu"),
        ({"target": "hexagon-windows-msvc"}, "bad-target", "those of x86_64 and aarch64 with windows-gnu, "),
        ({"target": "aarch64-linux-gnu2"}, "bad-target", "is unknown; known are cpu"),
        ({"target": "x86_64-windows-gnu+avx512_amx"}, "bad-target",
         "avx512_amx needs a permission of Linux; legal are features without amx"),
        ({"target": "aarch64-linux-gnu+avx2"}, "bad-target", "no level has the feature 'avx2'; legal are sme2"),
        ({"target": "x86_64-linux-gnu+avx512f"}, "bad-target", r"avx512f is used by the level avx512, which needs .*"
                                                               r"avx512bw.* too; legal is \+avx512$"),
        ({"target": "sm_75"}, "bad-target",
         "target 'sm_75' is unknown; known are cpu, .* sm_90a, sm_89, sm_86, sm_80, sm_70, "),
        ({"format": "dll"}, "bad-format", "format 'dll' is not legal; legal are object, source, static-library"),
        ({"name": "3x3"}, "bad-name", "name '3x3' is no identifier of C; legal are letters, .* such as conv_3x3"),
        ({"name": "class"}, "bad-name", "name 'class' is a word of C, C\\+\\+, Rust or convsmith"),
        ({"name": "memcpy"}, "bad-name", "is a word of"),
        ({"name": "exp"}, "bad-name", "name 'exp' is a name of the C library; legal are .* such as conv_exp"),
        ({"name": "cl_mem"}, "bad-name", "name 'cl_mem' is a name of a device's driver; .* such as conv_cl_mem"),
        ({"name": "math"}, "bad-name", "name 'math' is the name of a system's header or library"),
        ({"prefix": "3x3"}, "bad-name", "prefix '3x3' is not legal; .* such as net_3x3"),
        ({"prefix": "convsmith_net"}, "bad-name", "prefix 'convsmith_net' is not legal; .* not with convsmith"),
        ({"prefix": 3}, "bad-name", "prefix"),
        ({"weights": WEIGHTS[:1]}, "shape", r"wei: dim 0 \(oc\) is 1, .* legal is 16"),
        ({"weights": WEIGHTS.astype(np.float64)}, "dtype", "wei: dtype is float64; legal is float32"),
        ({"weights": {"bia": WEIGHTS}}, "bad-weights", "reads no array 'bia'; it reads src, wei"),
        ({"weights": {"dst": WEIGHTS}}, "bad-weights", "reads no array 'dst'"),
        ({"weights": "no/such.npy"}, "bad-weights", "weights no/such.npy: cannot be read: No such file"),
        ({"problem": "mb0ic8ih6oc16kh3ph1"}, "export", "has no elements in its source or destination"),
        ({"problem": []}, "no-problem", "no kernel to export"),
        ({"problem": [LINE, LINE], "weights": WEIGHTS}, "bad-weights", "weights for 2 kernels"),
        ({"problem": "mb1ic4ih6oc8kh1 -> mb1ic8ih6oc4kh1", "weights": WEIGHTS}, "bad-weights",
         "has wei_1, wei_2; legal are arrays by name"),
        ({"directory": ""}, "bad-file", "directory='' is not legal"),
    ],
)  # fmt: skip
def test_illegal_requests(options: dict[str, Any], code: str, message: str, tmp_path: Path) -> None:
    given = {"problem": LINE, "directory": tmp_path / "out", "threads": 1, **options}
    with pytest.raises((cs.UsageError, cs.UnsupportedError), match=message) as error:
        cs.export(given.pop("problem"), given.pop("directory"), **given)
    assert error.value.code == code
    assert not (tmp_path / "out").exists()


def test_other_kernels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(cs.UnsupportedError, match="kernels of fixed sizes are exported") as error:
        cs.export(cs.compile(LINE, dynamic="mb", threads=1), tmp_path / "out")  # type: ignore[arg-type]
    assert error.value.code == "export"
    several = [cs.compile(LINE, target=level, threads=1) for level in ("opencl", "generic")]
    with pytest.raises(cs.UnsupportedError, match=r"kernels for opencl, generic run by different drivers"):
        cs.export(several, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(cs.UsageError, match="cannot be written: ") as error:
        cs.export(LINE, tmp_path / "file" / "out", threads=1)
    assert error.value.code == "bad-file" and str(tmp_path / "file") in str(error.value)


def test_files_that_are_no_arrays(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("weights")
    np.savez(tmp_path / "several.npz", w=WEIGHTS)
    for name, why in (("text.npy", "cannot be read"), ("several.npz", "holds several arrays")):
        with pytest.raises(cs.UsageError, match=why) as error:
            cs.export(LINE, tmp_path / "out", threads=1, weights=tmp_path / name)
        assert error.value.code == "bad-weights"


def test_a_file_of_bf16_keeps_its_values(tmp_path: Path) -> None:
    line = f"--dt=bf16 {LINE}"
    weights = WEIGHTS.astype("bfloat16")
    np.save(tmp_path / "w.npy", weights)
    one, two = (
        cs.export(line, tmp_path / name, name="layer", threads=1, weights=given)
        for name, given in (("array", weights), ("file", tmp_path / "w.npy"))
    )
    assert one.code[0].read_bytes() == two.code[0].read_bytes()


# -- names and targets
@pytest.mark.parametrize(
    ("text", "name"),
    [("conv:1", "conv_1"), ("3x3", "conv_3x3"), ("int", "conv_int"), ("a b-c", "a_b_c"), ("é", "kernel"),
     ("convsmith_chunk", "conv_convsmith_chunk"), ("main", "conv_main"), ("", "kernel"),
     ("malloc", "conv_malloc"), ("errno", "conv_errno"), ("all", "conv_all"), ("a_packed", "a_packed_kernel"),
     ("a_check", "a_check_kernel"), ("a_pack_wei", "a_pack_wei_kernel"), ("unpack", "unpack")],
)  # fmt: skip
def test_texts_become_names(text: str, name: str) -> None:
    assert legal_name(text) == name == check_name(name)


@pytest.mark.parametrize(
    ("prefix", "text", "name"),
    [("net", "conv:1", "net_conv_1"), ("net", "3x3", "net_3x3"), ("net", "malloc", "net_malloc"),
     ("net", "int", "net_int"), ("pthread", "create", "pthread_conv_create"), ("net", "pack", "net_pack_kernel"),
     ("int", "x", "int_x"), ("net", "", "net_kernel")],
)  # fmt: skip
def test_a_prefix_precedes_texts(prefix: str, text: str, name: str) -> None:
    assert legal_name(text, prefix=check_prefix(prefix)) == name == check_name(name)
    assert check_prefix(f"{prefix}_") == prefix


def test_equal_names_get_numbers() -> None:
    assert unique_names(["a", "b", "a", "a_2", "A"]) == ["a", "b", "a_2", "a_2_2", "A_3"]


@pytest.mark.parametrize(
    ("text", "level", "triple"),
    [
        ("x86_64-linux-gnu", "generic", "x86_64-linux-gnu"),
        ("x86_64-unknown-linux-musl+avx2+fma+f16c", "avx2", "x86_64-unknown-linux-musl"),
        ("x86_64-none-elf+avx512_vnni", "avx512_vnni", "x86_64-none-elf"),
        ("aarch64-unknown-none-elf", "aarch64", "aarch64-unknown-none-elf"),
        ("aarch64-linux-android+i8mm", "aarch64+i8mm", "aarch64-linux-android"),
        ("aarch64-linux-gnu+dotprod+fp16", "aarch64+fp16", "aarch64-linux-gnu"),
        ("hexagon-unknown-linux-musl+v73", "hexagon+v73", "hexagon-unknown-linux-musl"),
        ("hexagon-none", "hexagon+v68", "hexagon-none"),
    ],
)
def test_triples_name_levels(text: str, level: str, triple: str) -> None:
    machine = export_machine(text)
    assert (machine.name, machine.triple) == (level, triple)


def test_every_level_is_a_target() -> None:
    every = (*known_targets(), *device_targets())
    assert [export_machine(t.name) for t in every] == [*every]


# -- the command
def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["export", *arguments])


def test_the_command_writes_files_and_lists_them(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", WEIGHTS)
    np.save(tmp_path / "b.npy", np.ones(16, np.float32))
    result = run(
        LINE, "--dir", "FWD_B", "--threads", "1", "--name", "layer", "--weights", str(tmp_path / "w.npy"), "--weights",
        f"bia={tmp_path / 'b.npy'}", "-o", str(tmp_path / "out"),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    head, kernel, *files = result.stdout.splitlines()
    assert head == "1 thread, --layout=axb (channels last), --dir=FWD_B" and kernel.startswith("layer  --dir=FWD_B")
    assert [line.rpartition("/")[2].split()[0] for line in files] == [
        "liblayer.a", "layer.h", "layer.rs", "CMakeLists.txt", "example.c", "layer.json",
    ]  # fmt: skip
    assert files[0].endswith("object code") and files[-1].endswith("manifest")
    assert "void layer(const float *src, float *dst" in (tmp_path / "out" / "layer.h").read_text(encoding="utf-8")


def test_a_file_of_lines_names_the_library(tmp_path: Path) -> None:
    (tmp_path / "my-net.txt").write_text(f'{LINE}n"stem:1"\n{LINE}\n')
    result = run(str(tmp_path / "my-net.txt"), "--threads", "1", "--format", "object", "-o", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert {"my_net.h", "my_net_stem_1.o"} <= set(os.listdir(tmp_path / "out"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "vax"), "UsageError: target 'vax' is unknown; known are cpu, the triples"),
        (("--format", "exe"), "--format=exe is not legal; legal are object, source, static-library"),
        (("--weights", "none.npy"), "weights none.npy: cannot be read"),
        (("--name", "a-b"), "name 'a-b' is no identifier of C"),
        (("--target", "loongarch64-unknown-elf"), "target 'loongarch64-unknown-elf' is unknown"),
        (("--output", f"{__file__}/out"), "test_errors_of_export.py/out: cannot be written: Not a directory"),
    ],
)
def test_the_command_refuses_with_status_2(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = run(LINE, "-o", str(tmp_path / "out"), *arguments)
    assert result.exit_code == 2 and message in result.stderr, result.output
    assert not (tmp_path / "out").exists()


def test_help_ends_with_an_example() -> None:
    text = " ".join(run("--help").stdout.split())
    assert "Example: convsmith export mb1ic64ih56oc64kh3ph1 --name layer --weights w.npy -o layer" in text


@pytest.mark.parametrize("word", ["Self", "abstract", "char8_t", "static_assert", "co_await", "typeof_unqual"])
def test_words_of_c_of_cpp_and_of_rust_are_no_names(word: str) -> None:
    assert legal_name(word) == f"conv_{word}"
    with pytest.raises(cs.UsageError, match=f"name '{word}' is a word of C, C"):
        check_name(word)
