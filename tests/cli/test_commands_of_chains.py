"""The commands take chains: as one quoted argument, in files, with options of their own for each stage."""

from __future__ import annotations

from pathlib import Path

import pytest
from blocked_chains import Sizes, cases, config, line, name
from click.testing import CliRunner, Result
from emulated import skip_without_emulator

from convsmith.cli.main import main
from convsmith.machine.registry import target as known_target

STAGES = ("--attr-post-ops=relu mb1ic4ih9oc8kh1", "--dir=FWD_B g8mb1ic8ih9oc8kh3ph1")
CHAIN = " -> ".join(STAGES)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture(autouse=True)
def _short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convsmith.measure.timing.SAMPLE_SECONDS", 1e-4)


def test_verify_takes_a_chain_and_names_its_stages() -> None:
    result = run("verify", CHAIN, "--threads", "1")
    assert result.exit_code == 0, result.output
    assert "--attr-post-ops=relu mb1ic4ih9oc8oh9kh1ph0 -> --dir=FWD_B --dtag=axb g8mb1" in result.output
    assert "oh9kh3ph1: exact" in result.output
    assert "--layout=axb" in result.output.splitlines()[0]


def test_a_chain_with_options_of_the_command() -> None:
    """Options before a chain hold for all stages that do not set them."""
    result = run("verify", "--dt=bf16", "mb1ic4ih9oc8kh1 -> g8mb1ic8ih9oc8kh3ph1", "--threads", "1")
    assert result.exit_code == 0, result.output
    assert result.output.count("--dt=bf16") >= 2


def test_bench_times_a_chain_beside_a_problem(tmp_path: Path) -> None:
    problems = tmp_path / "problems.txt"
    problems.write_text(f"{CHAIN}\nmb1ic4ih9oc8kh1\n")
    result = run("bench", str(problems), "--threads", "1", "--rounds", "2")
    assert result.exit_code == 0, result.output
    assert sum(line.endswith("yes") for line in result.stdout.splitlines()) == 2


def test_show_and_explain_print_all_stages() -> None:
    config = (
        "--target=generic --lane=oc --register=ow:3,oc:8 --order=mb,oh,ow,oc --compute_at=oh / "
        "--target=generic --lane=g --register=ow:3,g:8 --order=mb,oh,g,ow"
    )
    shown = run("show", CHAIN, "--config", config)
    assert shown.exit_code == 0 and "alloc mid: f32[" in shown.output, shown.output
    page = run("explain", CHAIN, "--config", config)
    assert page.exit_code == 0, page.output
    assert "stage1, in a loop of the main one: mid from the sums of src * wei_1" in page.output
    assert "mid, the result of stage 1, 1 x 8 x 9 x 9 f32, 3 KiB: computed at loop oh2 in 1 KiB" in page.output


def test_show_prints_the_kernel_of_each_stage() -> None:
    chain = "mb1ic4ih9oc8kh1 -> mb1ic8ih9oc8kh3ph1 -> mb1ic8ih9oc4kh1"
    shown = run("show", chain, "--target", "generic", "--threads", "1")
    assert shown.exit_code == 0, shown.output
    words = ("kernel ", "pack ", "before ")
    heads = [line.split("(")[0] for line in shown.output.splitlines() if line.startswith(words)]
    assert heads == [
        "kernel stage1", "pack stage1_pack_wei_1", "kernel stage2", "pack stage2_pack_wei_2", "kernel conv",
        "pack conv_pack_wei_3",
    ]  # fmt: skip
    for stage in shown.output.split("kernel ")[1:]:
        assert "call tile0(" in stage  # a rewritten nest


def test_stages_that_do_not_connect_are_one_message() -> None:
    result = run("verify", "mb1ic4ih9oc8kh1 -> mb1ic7ih9oc8kh1")
    assert result.exit_code and "computes 1x8x9x9" in result.output and "reads 1x7x9x9" in result.output


def test_commands_take_a_target_that_this_machine_lacks() -> None:
    """They show kernels for it, and none whose time could be measured."""
    target = ("--target", "hexagon+v68")
    chain = "--dt=s8:s8:s8 mb1ic32ih8oc32oh8kh1 -> --dt=s8:s8:s8 mb1ic32ih8oc32oh8kh1"
    assembly = run("show", "--asm", chain, *target)
    assert assembly.exit_code == 0 and "vrmpy" in assembly.output, assembly.output
    nest = run("show", "--chain", "--k-split", "1", "--h-split", "1", chain, *target)
    assert nest.exit_code == 0 and nest.output.endswith("// the caches lie in VTCM of 4096 KiB\n"), nest.output
    page = run("explain", chain, *target)
    assert page.exit_code == 0 and "not known: this machine does not run hexagon+v68" in page.output, page.output
    *_, line = run("bench", chain, *target).output.splitlines()
    assert line.startswith("UnsupportedError: target 'hexagon+v68' needs hvxv68, hvx-length128b, which this machine")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["avx2", "hexagon+v68"])
def test_commands_take_the_splits_of_a_blocked_chain_as_a_config(target: str, tmp_path: Path) -> None:
    """They are cache tiles like any others; only `bench` asks for a machine that runs the kernel."""
    case = next(case for case in cases() if name(case) == "1-3-2-2")
    sizes = Sizes(10, 5, 24, (2, 3, 8)) if target == "avx2" else Sizes(10, 5, 6, (2, 3, 2))
    chosen = (line(case, sizes), "--threads", "1", "--config", config(case, target, sizes.blocks))
    measured = "% peak" if target == "avx2" else "UnsupportedError"
    found = {"explain": "for oh2.b in 0 .. 2", "show": "mid", "bench": measured, "export": "libchain.a"}
    for command, text in found.items():
        result = run(command, *chosen, *(("-o", str(tmp_path)) if command == "export" else ()))
        assert text in result.output and result.exit_code == 2 * (text == "UnsupportedError"), (command, result.output)
    if target == "hexagon+v68":
        skip_without_emulator(known_target(target))
    assert run("verify", *chosen).output.endswith(": exact\n1 of 1 right\n")
