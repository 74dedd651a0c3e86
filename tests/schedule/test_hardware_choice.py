"""The default config of a machine with a copy engine, and the reasons why the engine cannot bring operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest

from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import one_table
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule import hardware, kernel, order
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import MAX_BUFFERS
from convsmith.schedule.kernel import kernel_plan
from convsmith.schedule.loops import in_parts
from convsmith.schedule.planned import plan_for
from convsmith.statement.views import statement
from convsmith.tune.devices.device import device_config

LAST = "--stag=axb --wtag=axb --dtag=axb --dt=bf16"
OF_GROUPS = "--stag=axb --wtag=abxc --dtag=axb --dt=bf16"
BROUGHT = {
    f"{LAST} mb32ic256ih28oc256oh28kh3ph1": "bf16",
    f"{LAST} mb1ic64ih8oc16oh8kh1": "bf16",
    f"--dir=BWD_D {LAST} mb8ic256ih28oc128oh28kh3ph1": "bf16_k_mn",
    f"--dir=BWD_W {LAST} mb8ic256ih28oc128oh28kh3ph1": "bf16_mn_mn",
    f"--dir=BWD_D {LAST} mb8ic256ih56oc128oh28kh3ph1sh2": "bf16_k_mn",
    f"--deconv {LAST} mb8ic128ih28oc64oh56kh4ph1sh2": "bf16",
    f"--dir=BWD_D {LAST} mb1ic64ih8oc64oh4kh1sh2": "bf16_k_mn",
    f"--dir=BWD_D {LAST} mb1ic64ih9oc64oh3kh3ph1sh2dh1": "bf16_k_mn",
    "--matmul --dt=bf16 512x256:256x512": "bf16_k_mn",
    "--stag=axb --wtag=axb --dtag=axb --dt=s8:s8:s32 mb8ic256ih28oc256oh28kh1": "s8",
    "--stag=axb --wtag=axb --dtag=axb --dt=u8:s8:u8 --attr-post-ops=relu mb8ic256ih28oc256oh28kh1": "u8_s8",
    "--stag=axb --wtag=axb --dtag=axb --accuracy=any mb8ic256ih28oc256oh28kh3ph1": "tf32",
    f"{OF_GROUPS} g3mb1ic48ih8oc96oh8kh3ph1": "bf16",
    f"{LAST} mb1ic16ih8oc16oh8kh3ph1": "bf16",
    f"--dir=BWD_D {OF_GROUPS} g2mb1ic64ih8oc32oh8kh1": "bf16_k_mn",
}
"""Problems, each with the types and the majors of the instruction."""
REFUSED = {
    f"{LAST} mb1ic60ih8oc64oh8kh1": "src has rows 120 bytes apart, no multiple of 16",
    f"{LAST} mb1ic64ih64iw4oc64oh64ow4kh3kw1ph130pw0dh129dw0": "src has corners -130",
    f"{OF_GROUPS} --accuracy=strict g8mb1ic64ih8oc64oh8kh1": "8 iterations of oc stand beside those of another group",
    f"{OF_GROUPS} --accuracy=strict g8mb1ic64ih8oc256oh8kh1":
        "neighbours beyond the 8 iterations of ic, which a tile of 16",
    f"--dir=BWD_W {OF_GROUPS} g2mb1ic64ih8oc64oh8kh1": "neighbours beyond the 32 iterations of ic, which a tile of 64",
    "--stag=axb --wtag=axb --dtag=axb mb1ic64ih8oc16oh8kh1": "rounds the factors, which --accuracy=any permits",
    "--stag=axb --wtag=axb --dtag=axb --dt=f64 mb1ic64ih8oc16oh8kh1": "no instruction multiplies f64:f64:f64",
}


def default(line: str) -> Config:
    with one_table():
        return device_config(parse_problem(line), target("sm_90a"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", BROUGHT)
def test_the_copy_engine_brings_operands(line: str) -> None:
    config = default(line)
    row, _, form = config.instruction.removeprefix("wgmma_").partition("_")
    assert config.realise == "hardware" and row.startswith("m64n") and form == BROUGHT[line]
    assert Config.parse(str(config)) == config
    with one_table():
        plan = plan_for(parse_problem(line), config, target("sm_90a"))
        assert "copy engine" not in str(plan)
        assert sum(plan.main.shared.values()) <= target("sm_90a").device.shared.bytes


@pytest.mark.parametrize(("channels", "columns"), [(96, 96), (160, 160), (80, 96), (256, 256)])
def test_columns_of_an_instruction_divide_the_channels(channels: int, columns: int) -> None:
    """Of layers with more tiles than units; columns beyond the channels would be multiplied and dropped."""
    config = default(f"{LAST} mb256ic256ih28oc{channels}oh28kh3ph1")
    assert dict(config.tiles_at("group"))["oc"] == columns and f"n{columns}k" in config.instruction


def test_phases_with_most_taps_bound_the_time() -> None:
    """A tile of one of four phases has four taps of nine: tiles of few columns give units equal parts of its steps."""
    config = default(f"--dir=BWD_D {LAST} mb32ic512ih14oc512oh7kh3sh2ph1")
    assert dict(config.tiles_at("group"))["ic"] == 128


@pytest.mark.sampled(4)
@pytest.mark.parametrize("line", [
    "--stag=axb --dtag=axb --dt=bf16 mb1ic64ih8oc64oh8kh3ph1", "--dir=BWD_D --stag=axb --dtag=axb --dt=f16 "
    "mb1ic64ih8oc64oh8kh3ph1", "--matmul --dt=s8:s8:s32 64x64:64x64", "--stag=axb --wtag=Acdb16a --dtag=axb --dt=bf16 "
    "mb1ic64ih8oc64oh8kh3ph1",
])  # fmt: skip
def test_weights_that_the_engine_cannot_bring_are_packed(line: str) -> None:
    config = default(line)
    assert config.realise == "hardware" and config.staged("pack") == ("wei",)
    with one_table():
        assert device_config(parse_problem(line), target("sm_90a"), packs=False).realise != "hardware"


LARGE = {
    "ic64ih224oc64oh224": (128, 64, 8), "ic128ih112oc128oh112": (256, 128, 4), "ic256ih56oc256oh56": (128, 256, 4),
    "ic512ih28oc512oh28": (128, 256, 4), "ic512ih14oc512oh14": (128, 256, 4), "ic256ih14oc256oh14": (64, 256, 4),
}  # fmt: skip
"""Sizes of 3x3 layers of VGG-16 and ResNet-50, each with the rows and columns of a group, and its slots."""
EVEN = {("ic512ih14oc512oh14", 32): (192, 128, 4), ("ic256ih14oc256oh14", 128): (192, 128, 4)}
"""Those with a number of images for which three groups of warps leave fewer units idle."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("images", (32, 128))
@pytest.mark.parametrize("sizes", LARGE)
def test_groups_of_large_layers_have_large_tiles_and_several_slots(sizes: str, images: int) -> None:
    config, expected = default(f"{LAST} mb{images}{sizes}kh3ph1"), EVEN.get((sizes, images), LARGE[sizes])
    assert (config.group_size("mb_oh_ow"), config.group_size("oc"), config.buffers) == expected
    assert config.instruction == f"wgmma_m64n{expected[1]}k16_bf16"
    assert config.tiles_at("cluster") == ((("mb_oh_ow", 2),) if expected[0] == 64 else ())


@pytest.mark.parametrize("line, cycles, traffic, most, tiles", [
    (f"{LAST} mb32ic256ih56oc256oh56kh3ph1", 1024, (80, 48), "100%", "784 on 132 units: at most 99%"),
    (f"{LAST} mb32ic256ih14oc256oh14kh3ph1", 512, (80, 80), "80%", "98 on 132 units: at most 74%"),
    (f"--dir=BWD_D {LAST} mb32ic256ih56oc256oh56kh3ph1", 1024, (80, 48), "100%", "784 on 132 units: at most 99%"),
])  # fmt: skip
def test_the_plan_says_what_bounds_its_rate(
    line: str, cycles: int, traffic: tuple[int, int], most: str, tiles: str
) -> None:
    """A step multiplies 64 terms of its tile, 2048 in a cycle; each product of 64 rows reads both factors."""
    text = str(plan_for(parse_problem(line), default(line), target("sm_90a")))
    read, written = traffic
    assert f"take {cycles} cycles" in text and f"gives {read} and takes {written} of 128 bytes: at most {most}" in text
    assert tiles in text


@pytest.mark.parametrize("line, split", [
    (f"--dir=BWD_W {LAST} mb32ic64ih56oc64oh56kh3ph1", True),
    (f"--dir=BWD_W {LAST} mb3ic64ih7oc64oh7kh3ph1", False), (f"{LAST} mb32ic64ih56oc64oh56kh3ph1", False),
])  # fmt: skip
def test_sums_of_few_weights_have_parts(line: str, split: bool) -> None:
    """Parts are whole steps: images of 49 pixels are not, in three of them."""
    assert bool(default(line).tiles_at("split")) is split


@pytest.mark.parametrize("line, loop", [
    (f"{LAST} mb1ic256ih14oc256oh14kh3ph1", "ic"), (f"{LAST} mb1ic2048ih7oc512oh7kh1", "ic"),
    (f"--dir=BWD_D {LAST} mb1ic512ih7oc512oh7kh3ph1", "oc"), (f"{LAST} mb32ic512ih7oc512oh7kh3ph1", ""),
    (f"{LAST} mb1ic64ih14oc64oh14kh3ph1", ""),
])  # fmt: skip
def test_a_grid_of_few_tiles_has_parts_where_the_model_expects_a_gain(line: str, loop: str) -> None:
    """Parts fill most units, and nothing is gained if adding them up takes as long as what they save."""
    config = default(line)
    assert [n for n, _ in config.tiles_at("split")] == [loop][: bool(loop)]
    if loop:
        with one_table():
            plan = plan_for(parse_problem(line), config, target("sm_90a"))
        assert 100 <= plan.main.nest.groups <= 132
        assert [k.statement.name for k in plan.kernels] == ["conv", "sums"]


@pytest.mark.sampled(2, "line")
@pytest.mark.parametrize("line", REFUSED)
def test_another_realisation_is_taken_for_a_reason(line: str) -> None:
    config = default(line)
    assert config.realise != "hardware"
    with one_table():
        text = str(plan_for(parse_problem(line), config, target("sm_90a")))
    assert "copy engine   not used: " in text and REFUSED[line] in text


@pytest.mark.sampled(11)
@pytest.mark.parametrize("line", [*BROUGHT, *REFUSED])
def test_the_choice_of_a_config_plans_nothing(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits are predicates of a tile: the rewrites of one kernel are made once, for the config that is chosen."""
    made: list[str] = []
    for module, name in ((order, "warp_groups"), (kernel, "pipeline_of")):
        monkeypatch.setattr(module, name, partial(_counted, made, name, getattr(module, name)))
    config = default(line)
    assert not made
    with one_table():
        plan = plan_for(parse_problem(line), config, target("sm_90a"))
    assert made.count("warp_groups") == (config.realise == "hardware")
    assert made.count("pipeline_of") == len(plan.kernels)


def _counted(made: list[str], name: str, run: Callable[..., Any], *arguments: Any) -> Any:
    made.append(name)
    return run(*arguments)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", [line for line in BROUGHT if "--dt=bf16" in line])
def test_a_predicate_gives_the_error_of_planning(line: str) -> None:
    """Tiles of all sizes, most of them illegal, have a plan where the predicate finds nothing, and its error if not."""
    machine, problem = target("sm_90a"), parse_problem(line)
    with one_table():
        st, config, found = statement(problem, machine), default(line), set()
        for sizes in product((1, 2, 3), (1, 4, 40), (1, 3, 8), (1, 4, 64)):
            *tile, slots = sizes
            group = tuple((n, size * factor) for (n, size), factor in zip(config.tiles_at("group"), tile))
            other = config.changed(group=group, buffers=min(slots, MAX_BUFFERS))
            try:
                shared = in_parts(st, other, machine)
            except ConfigError as error:  # a step so long that the last part has no terms
                assert error.code == "split"
                continue
            flaw = hardware.hardware_flaw(shared, other, machine)
            found.add(flaw is None)
            try:
                kernel_plan(shared, other, machine)
                assert flaw is None
            except ConfigError as error:
                assert flaw is not None and (error.code, error.message) == (flaw.code, flaw.message)
    assert found == {True, False}


def test_a_machine_without_a_copy_engine_has_no_reason() -> None:
    problem, machine = parse_problem(f"{LAST} mb1ic64ih8oc16oh8kh1"), target("sm_80")
    with one_table():
        assert "copy engine" not in str(plan_for(problem, device_config(problem, machine), machine))


@pytest.mark.parametrize("words, why", [
    ("--register=mb_oh_ow:32,oc:16 --group=mb_oh_ow:64,oc:16,ic:64", "found mb_oh_ow:32"),
    ("--register=mb_oh_ow:64,oc:16 --group=mb_oh_ow:64,oc:16,ic:24", "found ic:24"),
    ("--register=mb_oh_ow:64,oc:256 --group=mb_oh_ow:256,oc:256,ic:16", "with 160 registers; sm_90a has 112"),
    ("--register=mb_oh_ow:64,oc:16 --group=mb_oh_ow:64,oc:16,ic:64 --instruction=mma_m16n8k16_bf16", "legal"),
])  # fmt: skip
def test_what_a_config_may_not_ask(words: str, why: str) -> None:
    words = words if "--instruction" in words else f"{words} --instruction=wgmma_m64n16k16_bf16"
    config = Config.parse(
        "--target=sm_90a --lane=oc --fuse=mb+oh,mb_oh+ow --reduce=kh,kw,ic --pack= --realise=hardware --shared=src,wei "
        + words
    )
    with one_table(), pytest.raises(ConfigError, match=why):
        plan_for(parse_problem(f"{LAST} mb1ic64ih8oc16oh8kh3ph1"), config, target("sm_90a"))


def test_weights_in_blocks_have_a_default() -> None:
    """Neighbours of a block are no tile of a loop alone: another realisation is taken."""
    line = "--dt=bf16:bf16:f32 --wtag=aBCde4c4b --dtag=aBcd16b g1mb2ic13ih8iw16oc5oh2ow10kh3kw1sh4sw2ph0pw1"
    assert default(line).realise != "hardware"
