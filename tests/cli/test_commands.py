"""The command line: what is printed where, exit statuses, JSON, interrupts; on problems of some microseconds."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import convsmith as cs
from convsmith.cli import bench as bench_module
from convsmith.cli import bench_json
from convsmith.cli.main import main
from convsmith.diag.errors import InternalError
from convsmith.diag.settings import settings
from convsmith.machine.registry import host_targets, known_targets
from convsmith.measure.peer import Peer
from convsmith.measure.timing import Measurement, Spread
from convsmith.measure.verification import Verdict
from convsmith.problem.problem import Problem
from convsmith.problem.reference import reference

LINE = "mb1ic3ih8oc4oh6kh3ph0"
LAST = "--stag=axb --dtag=axb"
FAST = ["--threads", "1", "--rounds", "2"]
LIST = f"# two problems\n{LINE}  # the first\n\n--dir=FWD_B --attr-post-ops=relu g2mb1ic4iw9oc6kw3\n"


@pytest.fixture(autouse=True)
def _short_samples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("convsmith.measure.timing.SAMPLE_SECONDS", 1e-4)
    yield


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=text)


@pytest.fixture
def lines(tmp_path: Path) -> str:
    path = tmp_path / "problems.txt"
    path.write_text(LIST)
    return str(path)


# -- bench
def test_bench_prints_a_row_for_each_problem_and_the_mean(lines: str) -> None:
    result = run("bench", lines, *FAST)
    assert result.exit_code == 0, result.output
    head, columns, first, second, mean, *remark = result.stdout.splitlines()
    assert remark[0].startswith(("peak: ", "peaks: ")) and all(" rows " in line for line in remark[1:])
    assert head.endswith(", 1 thread, --layout=axb (channels last)")
    assert columns.split() == ["problem", "config", "time", "us", "GFLOP/s", "%", "peak", "+-", "verified"]
    assert first.startswith(LINE) and first.split()[-1] == "yes"
    assert second.startswith("--dir=FWD_B --attr-post-ops=relu g2mb1ic4iw9oc6ow7kw3pw0")
    assert mean.startswith("geometric mean")
    assert all(float(word) > 0 for word in first.split()[-5:-2])
    assert "\x1b" not in result.output


def test_bench_takes_descriptors_standard_input_and_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def fake(kernel: cs.CompiledKernel, *_: object) -> Any:
        seen.append(kernel.problem.descriptor())
        return bench_module.Row(kernel.problem, kernel, Verdict(0, 1, "exact"))

    monkeypatch.setattr(bench_module, "bench_kernel", fake)
    assert run("bench", LINE, *FAST).exit_code == 0
    assert run("bench", "-", *FAST, text=LIST).exit_code == 0
    assert seen == [LINE, LINE, "g2mb1ic4iw9oc6ow7kw3pw0"]
    monkeypatch.setattr("convsmith.cli.bench.build", lambda problem, *_: cs.compile(LINE, threads=1))
    assert run("bench", "vgg16", *FAST).exit_code == 0
    assert len(seen) == 3 + 9


KINDS = (
    "--dir=BWD_W mb1ic3ih8oc4oh6kh3ph0\n--matmul --bia-dt=f32 --attr-post-ops=sum 8x9:9x10\n"
    "--conv --dir=FWD_B --dt=u8:s8:s8 --attr-scales=wei:per_oc --attr-post-ops=add:f32:per_oc mb1ic3ih8oc4oh6kh3ph0\n"
)


def test_bench_times_problems_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = run("bench", "-", *FAST, "--target", "generic", "--json", str(path), text=KINDS)
    assert result.exit_code == 0, result.output
    columns, gradient, product, integers, _ = result.stdout.splitlines()[1:6]
    assert " rate " in columns and all(" yes" in row for row in (gradient, product, integers))
    assert gradient.startswith("--dir=BWD_W mb1ic3ih8")
    assert product.startswith("--matmul --bia-dt=f32 --bia-mask=2 --attr-post-ops=sum 8x9")
    assert gradient.split()[-4] == product.split()[-4] == "GFLOP/s"
    assert integers.split()[-4:-1] == ["GOP/s", "-", "-"] and float(integers.split()[-5]) > 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["of_peak"] is None for row in rows] == [False, False, True]  # this level has no row for integers
    assert rows[2]["peak_gflops"] is None and rows[2]["gflops"]["median"] > 0


def test_bench_writes_json(lines: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    assert run("bench", lines, *FAST, "--target", "generic", "--json", str(path)).exit_code == 0
    content = json.loads(path.read_text())
    assert content["schema"] == bench_json.JSON_SCHEMA and content["convsmith"] == cs.__version__
    assert {"cpu", "features", "caches", "llvm", "numpy", "openmp"} <= set(content["machine"])
    assert (content["rounds"], content["layout"], content["complete"]) == (2, "axb", True)
    assert len(content["rows"]) == 2 and content["geometric_means"]["of_peak"] > 0
    row = content["rows"][0]
    assert row["problem"] == f"--stag=axb --dtag=axb {LINE}"
    assert row["verified"] is True and row["error"] is None and row["target"] == "generic" and row["threads"] == 1
    assert cs.Config.parse(row["config"]).target == "generic" and row["flops"] == 2 * 4 * 36 * 27
    for figure in ("seconds", "gflops", "peak_gflops", "of_peak"):
        assert 0 < row[figure]["low"] <= row[figure]["median"] <= row[figure]["high"]


def test_bench_writes_json_to_standard_output() -> None:
    result = run("bench", LINE, *FAST, "--json", "-")
    assert json.loads(result.stdout)["rows"][0]["verified"]


def test_bench_compares_with_libraries_that_are_installed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "out.json"
    result = run("bench", LINE, *FAST, "--vs", "torch", "--json", str(path))
    assert result.exit_code == 0 and float(result.stdout.splitlines()[2].split()[-1]) > 0
    content = json.loads(path.read_text())
    peer = content["rows"][0]["libraries"]["torch"]
    assert peer["seconds"]["median"] > 0 and content["geometric_means"]["torch"] == pytest.approx(
        peer["speedup"]["median"]
    )
    assert content["libraries"]["torch"].startswith("2.")


def test_a_library_that_is_not_installed_is_a_dash_and_one_line(monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    monkeypatch.setattr(bench_module, "installed", lambda name: False)
    result = run("bench", lines, *FAST, "--vs", "onnxruntime")
    assert result.exit_code == 0
    assert [row.split()[-1] for row in result.stdout.splitlines()[2:5]] == ["-", "-", "-"]
    hint = "onnxruntime is not installed: in a clone of convsmith, pip install '.[peers]' brings it"
    assert result.stdout.count(hint) == 1


def test_what_a_library_cannot_do_is_a_dash_and_one_line() -> None:
    pytest.importorskip("torch")
    result = run("bench", "mb1ic2ih8oc2oh8kh2ph0", *FAST, "--vs", "torch")
    assert result.exit_code == 0 and "torch cannot do mb1ic2ih8oc2oh8kh2ph0: torch has the same pads" in result.stdout


@pytest.mark.parametrize("direction", ["BWD_D", "BWD_W", "BWD_WB"])
def test_libraries_are_timed_on_gradients(direction: str) -> None:
    pytest.importorskip("torch")
    result = run("bench", f"--dir={direction}", LINE, *FAST, "--vs", "torch")
    assert result.exit_code == 0 and "cannot" not in result.stdout
    assert float(result.stdout.splitlines()[2].split()[-1]) > 0


def test_a_library_that_computes_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(name: str, problem: Problem, arrays: dict[str, Any], threads: int) -> Peer:
        return Peer(lambda: None, lambda: np.ones(problem.outputs[0].shape, np.float32))

    monkeypatch.setattr(bench_module, "installed", lambda name: True)
    monkeypatch.setattr(bench_module, "make_peer", make)
    result = run("bench", "mb1ic16ih4oc16oh4kh3ph1", *FAST, "--vs", "onednn")
    assert result.exit_code == 0 and "onednn cannot do mb1ic16ih4oc16oh4kh3ph1" in result.stdout
    assert "of 256 elements of its result differ from convsmith's" in result.stdout


def test_libraries_are_compared_on_the_weights_that_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose products of bytes saturate is right on weights within the limit of our instruction."""
    largest = []

    def make(name: str, problem: Problem, arrays: dict[str, Any], threads: int) -> Peer:
        largest.append(int(np.abs(arrays["wei"].astype(int)).max()))
        return Peer(lambda: None, lambda: reference(problem, arrays)["dst"])

    monkeypatch.setattr(bench_module, "make_peer", make)
    if "avx2" not in [x.name for x in host_targets()]:
        pytest.skip("this machine has no AVX2")
    kernel = cs.compile("--dt=u8:s8:s32 mb1ic16ih4oc16oh4kh3ph1", target="avx2", threads=1)
    assert kernel.artifact is not None and kernel.artifact.limits == {"wei": 64}
    row = bench_module.bench_kernel(kernel, ["onednn"], rounds=1)
    assert largest == [64, 64] and not row.missing


def test_figures_that_vary_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = Spread(1.0, 0.7, 1.0)
    times = Measurement(figures, figures, figures, figures)
    monkeypatch.setattr(bench_module, "measure", lambda *_: times)
    assert "1 of 1 rows vary by more than 10% (+-)" in run("bench", LINE, *FAST).stdout


def test_an_interrupt_keeps_the_rows_already_measured(
    monkeypatch: pytest.MonkeyPatch, lines: str, tmp_path: Path
) -> None:
    measured = bench_module.bench_kernel
    turns = iter([False, True])

    def interrupted(*arguments: Any) -> Any:
        if next(turns):
            raise KeyboardInterrupt
        return measured(*arguments)

    monkeypatch.setattr(bench_module, "bench_kernel", interrupted)
    path = tmp_path / "out.json"
    result = run("bench", lines, *FAST, "--json", str(path))
    assert result.exit_code == 130
    assert result.stdout.splitlines()[2].startswith(LINE) and "interrupted: 1 of 2 measured" in result.stderr
    content = json.loads(path.read_text())
    assert len(content["rows"]) == 1 and content["complete"] is False


def test_a_mismatch_is_said_and_is_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Verdict(2, 144, "2 of 144 elements differ")
    monkeypatch.setattr(bench_module, "verify_kernel", lambda kernel: wrong)
    result = run("bench", LINE, *FAST)
    assert result.exit_code == 1 and " NO" in result.stdout and "mismatch: mb1ic3" in result.stderr
    monkeypatch.setattr("convsmith.cli.verify.verify_kernel", lambda *_: wrong)
    result = run("verify", LINE, "--threads", "1")
    assert result.exit_code == 1 and "2 of 144 elements differ" in result.stderr and "0 of 1 right" in result.stdout


def test_a_config_that_does_not_suit_one_layer_leaves_the_others() -> None:
    config = "--target=generic --lane=oc --register=oc:4,oh:2"
    result = run("bench", "-", *FAST, "--config", config, text=f"{LINE}\nmb1ic3iw9oc4kw3\n")
    assert result.exit_code == 2
    assert result.stdout.splitlines()[3].split()[-6:] == ["-"] * 5 + ["none"]  # it has no loop oh
    assert "ConfigError: mb1ic3iw9oc4ow7kw3pw0" in result.stderr and "'oh'" in result.stderr


# -- verify
def test_verify_tries_every_line(lines: str) -> None:
    result = run("verify", lines, "--real", "--threads", "2", "--seed", "3")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "2 of 2 right"
    assert result.stdout.count("right: ") == 2 and result.stdout.count("exact; largest error is") == 2


def test_verify_tries_lines_of_every_kind() -> None:
    result = run("verify", "-", "--real", "--threads", "1", text=KINDS)
    assert result.exit_code == 0 and result.stdout.splitlines()[-1] == "3 of 3 right", result.output
    # What kind a line is, it may say itself.
    result = run("verify", "-", "--matmul", "--threads", "1", text=f"3x4:4x5\n--conv {LINE}\n")
    assert "right: --matmul 3x4:4x5: exact" in result.stdout and f"right: {LAST} {LINE}: exact" in result.stdout


@pytest.mark.parametrize(
    "arguments,line",
    [
        (["--deconv", "--dir=BWD_D", "mb1ic3ih8oc4oh10kh3ph0"], f"--deconv --dir=BWD_D {LAST} mb1ic3ih8oc4oh10kh3ph0"),
        (["--matmul", "--dt=u8:s8:f32", "--bia-dt=f32", "3x4:4x5"],
         "--matmul --bia-dt=f32 --bia-mask=2 --dt=u8:s8:f32 3x4:4x5"),
        (["--dt=s8", "--attr-scales=dst:common:2", "--attr-zero-points=src:common:1", LINE],
         f"--dt=s8 {LAST} --attr-scales=dst:common:2 --attr-zero-points=src:common:1 {LINE}"),
        (["--dt=f16", "--attr-acc-mode=any", LINE], f"--dt=f16 {LAST} --attr-acc-mode=any {LINE}"),
        (["--mb=2", LINE], f"{LAST} {LINE.replace('mb1', 'mb2')}"),
    ],
)  # fmt: skip
def test_options_of_every_kind_of_problem(arguments: list[str], line: str) -> None:
    result = run("verify", *arguments, "--threads", "1")
    assert result.exit_code == 0 and f"right: {line}: exact" in result.stdout, result.output


@pytest.mark.parametrize("line", KINDS.splitlines())
def test_explain_and_show_take_lines_of_every_kind(line: str) -> None:
    assert "operations" in run("explain", *line.split(), "--threads", "1").stdout
    assert "kernel conv(" in run("show", *line.split(), "--threads", "1").stdout


@pytest.mark.parametrize("layout", ["axb", "aBx16b", "nope"])
def test_verify_in_a_layout(layout: str) -> None:
    result = run("verify", LINE, "--layout", layout, "--threads", "1")
    assert result.exit_code == (2 if layout == "nope" else 0)


def test_options_of_a_problem_may_stand_outside_of_its_line(lines: str) -> None:
    result = run("verify", "--dir=FWD_B", "--stag=axb", lines, "--threads", "1")
    assert f"right: --dir=FWD_B {LAST} {LINE}: exact" in result.stdout and result.exit_code == 0
    result = run("verify", "--attr-post-ops=relu", "vgg16", "--target", "nope")
    assert result.exit_code == 2


def test_the_command_of_a_trace_line_can_be_run() -> None:
    from convsmith.compiler.service import repro

    problem = cs.Conv.parse(f'--dir=FWD_B --stag=axb --attr-post-ops=relu {LINE}n"a b"')
    words = repro("verify", problem, "--target=generic --lane=oc --register=oc:4,ow:3")
    result = run(*shlex.split(words)[1:])
    assert result.exit_code == 0 and "1 of 1 right" in result.stdout, result.stderr


# -- explain, show, machine, cache
def test_explain() -> None:
    result = run("explain", LINE, "--threads", "1")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and lines[0].startswith("verdict ") and lines[1].startswith("1 thread")
    assert lines[3].split(maxsplit=1)[1].startswith(LAST)


@pytest.mark.parametrize(
    "options,text",
    [
        ([], "kernel conv("), (["--after", "003"], "kernel conv("), (["--after", "3"], "kernel conv("),
        (["--after", "naive"], "for oc in 0 .. 4:"), (["--after", "tile"], ".l in 0 .. "),
        (["--all"], "# 003 "), (["--llvm"], "define void"), (["--asm"], "convsmith_chunk"),
    ],
)  # fmt: skip
def test_show(options: list[str], text: str) -> None:
    result = run("show", LINE, "--threads", "1", "--target", "generic", *options)
    assert result.exit_code == 0 and text in result.stdout


def test_cache(tmp_path: Path) -> None:
    with cs.settings.scope(cache=tmp_path / "c"):
        assert run("verify", "mb1ic3ih7oc4oh5kh3ph0", "--threads", "1", "--target", "generic").exit_code == 0
        assert run("explain", LINE, "--threads", "1").exit_code == 0
        info = run("cache", "info")
        assert str(tmp_path / "c") in info.stdout and "mode       0700" in info.stdout
        assert "removed" in run("cache", "clear").stdout
        assert not list((tmp_path / "c").iterdir())
    with cs.settings.scope(cache="off"):
        assert "off" in run("cache", "info").stdout and "off" in run("cache", "clear").stdout


# -- show
def test_show_prints_the_nest_of_a_chain() -> None:
    text = run("show", "--chain", "mb1ic128ih64oc128oh64kh1 -> mb1ic128ih64oc128oh64kh1", "--k-split", "2").stdout
    assert text.startswith("primfn(") and "  for (ko.outer: int32, 0, 2) {\n    for (ho.outer: int32, 0, 8) {" in text
    result = run("show", "--chain", LINE)
    assert result.exit_code == 2 and "is one problem; legal are two, joined by ->" in result.stderr
    result = run("show", LINE, "--h-split", "2")
    assert result.exit_code == 2 and "legal with --chain only" in result.stderr


# -- errors
@pytest.mark.parametrize(
    "arguments,text",
    [
        (["bench", "mb1ic3"], "oc is missing"),
        (["bench", "no/such.txt"], "no/such.txt is neither a file nor a descriptor"),
        (["bench", LINE, "--vs", "mkl"], "unknown library 'mkl': legal are torch, onnxruntime"),
        (["bench", LINE, "--threads", "0"], "0 is not in the range"),
        (["bench", LINE, "--json", "/no/such/dir/x.json"], "there is no such directory"),
        (["verify", LINE, "--target", "sse9"], "target 'sse9' is unknown"),
        (["verify", LINE, "--config", "--target=generic --lane=oc / --lane=oc"], "--target= is missing"),
        (["verify", LINE, "--config", "--realise=guess"], "--realise=guess is unknown; legal are mask, peel"),
        (["verify", LINE, "--config", "--target=guess"], "guess"),
        (
            ["explain", LINE, "--config", "--target=generic --lane=oc --register=oc:64"],
            "vector registers, target has 16",
        ),
        (["show", LINE, "--after", "frobnicate"], "no pass 'frobnicate'"),
        (["show", LINE, "--llvm", "--asm"], "exclude each other"),
        (["frobnicate"], "No such command"),
        (["verify", "--matmul", "3x4:5x6"], "the source has K=4, the weights have K=5"),
        (["verify", "--dir=BWD_X", LINE], "--dir: 'BWD_X' is unknown"),
        (["verify", "--dt=f4_e2m1", LINE], "f4_e2m1 is not available; available: f32"),
        (["verify", "--bia-mask=2", LINE], "--bia-mask is unknown"),
    ],
)
def test_what_is_not_legal_is_exit_status_2_and_no_traceback(arguments: list[str], text: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert text in result.stderr and "Traceback" not in result.output and not result.stdout


def test_an_error_in_a_file_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text(f"{LINE}\nmb1ic3\n")
    result = run("verify", str(path))
    assert result.exit_code == 2 and f"{path}:2: " in result.stderr
    path.write_text("# nothing\n")
    assert "contains no descriptor" in run("verify", str(path)).stderr
    path.write_bytes(b"\xff\xfe\x00")
    assert "not a text file" in run("verify", str(path)).stderr


@pytest.mark.parametrize("error", [InternalError("oh", repro="convsmith verify x"), ZeroDivisionError("oh")])
def test_a_fault_of_ours_shows_how_to_reproduce_it(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("convsmith.cli.explain.build", fail)
    result = run("explain", LINE)
    assert result.exit_code == 1 and "To reproduce: convsmith" in result.stderr and "Traceback" not in result.output


@pytest.mark.parametrize("command", ["bench", "verify"])
def test_a_fault_with_one_problem_leaves_the_others(monkeypatch: pytest.MonkeyPatch, lines: str, command: str) -> None:
    build = getattr(import_module(f"convsmith.cli.{command}"), "build")  # noqa: B009 - the module, not the command
    faulty = iter([True, False])

    def fail(*arguments: Any) -> Any:
        return 1 // 0 if next(faulty) else build(*arguments)

    monkeypatch.setattr(f"convsmith.cli.{command}.build", fail, raising=True)
    result = run(command, lines, "--threads", "1", *(["--rounds", "2"] if command == "bench" else []))
    assert result.exit_code == 1 and "g2mb1ic4iw9oc6ow7kw3" in result.stdout
    assert "ZeroDivisionError" in result.stderr and f"To reproduce: convsmith {command} --threads 1" in result.stderr


def test_a_setting_that_is_not_legal_is_exit_status_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "convsmith.cli.main", "verify", LINE],
        capture_output=True, text=True, check=False, env={"CONVSMITH_THREADS": "many", "PATH": "/usr/bin"},
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.startswith("UsageError: CONVSMITH_THREADS='many'"), done.stderr


def test_help_and_version() -> None:
    assert run("--version").stdout.strip() == f"convsmith, version {cs.__version__}"
    page = run("--help").stdout
    assert all(command in page for command in ("bench", "verify", "explain", "show", "machine", "cache"))
    assert "CONVSMITH_DUMP" in page


# -- warnings
@pytest.mark.parametrize("command", ["bench", "verify", "explain", "show"])
def test_an_unusable_cache_is_one_line(command: str, tmp_path: Path) -> None:
    directory = tmp_path / "file" / "cache"
    directory.parent.touch()
    line = f"mb1ic{30 + len(command)}ih8oc4oh6kh3ph0"  # that this process has no kernel of
    with settings.scope(cache=directory):
        result = run(command, line, *(FAST if command == "bench" else FAST[:2]))
    assert result.exit_code == 0
    told = [line for line in result.stderr.splitlines() if "cache" in line.lower()]
    assert len(told) == 1 and told[0].startswith(
        f"warning: cache directory {directory} (mode unknown) is not used: cannot be reached: Not a directory; "
    )
    assert "Warning" not in result.stderr and ".py" not in result.stderr


def test_an_unusable_cache_in_a_process_of_its_own(tmp_path: Path) -> None:
    """On the command line a plain line; in Python a warning that names the caller's line."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    program = tmp_path / "program.py"
    program.write_text(f"import convsmith\n\nconvsmith.compile({LINE!r}, threads=1)\n")
    called = "from convsmith.cli.main import main; main()"
    environment = {
        **os.environ, "CONVSMITH_CACHE": str(tmp_path / "open"), "PYTHONPATH": str(Path(cs.__file__).parents[1]),
    }  # fmt: skip

    def errors(*words: str) -> list[str]:
        done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stderr.splitlines()

    text = f"cache directory {tmp_path / 'open'} (mode 0777) is not used: others can write to it; kernels are compiled"
    (line,) = errors("-c", called, "show", LINE, "--threads", "1")
    assert line.startswith(f"warning: {text}")
    first, source = errors(str(program))
    assert first.startswith(f"{program}:3: CacheWarning: {text}") and source.strip().startswith("convsmith.compile")


@pytest.mark.parametrize("verb, status", [("show", 0), ("explain", 0), ("bench", 2)])
def test_a_target_that_this_machine_does_not_run(verb: str, status: int) -> None:
    isa = next(t.name for t in known_targets() if t not in host_targets())
    result = run(verb, LINE, "--target", isa, "--threads", "1")
    assert result.exit_code == status
    assert status == 0 or f"target {isa!r} needs " in result.output


@pytest.mark.parametrize("name", ["f32_dwconv_up2x9", "xnn_f32_dwconv_minmax_ukernel_9p2c__scalar"])
def test_show_prints_micro_kernels(name: str) -> None:
    """The IR at each stage, and the assembly of targets that need not be this machine's."""
    shown = run("show", name, "--target", "generic").output
    assert shown.startswith("# f32_dwconv_up2x9\nkernel dwconv(input: ptr[?]")
    assert "alloc acc: f32[] @register" in run("show", name, "--after", "naive").output
    assert "f32_dwconv_up2x9" in run("show", name, "--target", "hexagon+v68", "--asm").output
    assert run("show", name, "--all").output.count("\n# 0") > 10


@pytest.mark.parametrize("more", [["--threads", "2"], ["--dt=bf16"], ["node"], ["--chain"], ["--config", "--lane=oc"]])
def test_the_name_of_a_micro_kernel_decides_everything(more: list[str]) -> None:
    result = run("show", "f32_dwconv_up2x9", *more)
    assert result.exit_code and "f32_dwconv_up2x9 is the name of a micro-kernel" in result.output
