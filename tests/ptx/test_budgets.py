"""Opcodes of hot loops as checked-in text: the budget of one round of each default kernel's innermost loop, and the
opcodes, products, registers and conversions of the kernels of every kind.

`pytest tests/ptx --update-golden` writes the texts anew. They are those of one assembler, which each file names; they
are compared with that assembler only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from convsmith.codegen import llvm_bind
from convsmith.compiler.cubin import AssembledKernels, assemble_ptx
from convsmith.compiler.driver import emit, lower
from convsmith.diag.collection import no_collection
from convsmith.ir.intern import one_table
from convsmith.ir.stmt import Kernel, Store
from convsmith.ir.value import Cast, dtype_of, lanes_of
from convsmith.ir.walk import statements_of, walk
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from ptx.hopper_configs import KINDS, forward
from ptx.sass import (
    disassembly,
    hot_loop,
    products_behind_barriers,
    roots,
    skip_without,
    skip_without_disassembler,
)
from ptx.tensor_kinds import AMPERE, VOLTA
from ptx.test_convolutions import made

HERE = Path(__file__).parent / "budgets"
LAYERS = {
    "convolution": "--stag=axb --dtag=axb mb8ic64ih28oc64oh28kh3ph1",
    "product": "--matmul 256x128:128x256",
    "backward": "--dir=BWD_D --stag=axb --dtag=axb mb8ic64ih28oc64oh28kh3ph1",
}
TENSOR_LAYERS = {
    "halves": ("--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb8ic64ih28oc64oh28kh3ph1", "HMMA"),
    "bytes": ("--stag=axb --wtag=axb --dtag=axb --dt=s8:s8:s32 mb8ic64ih28oc64oh28kh3ph1", "IMMA"),
}
"""Problems whose warps multiply fragments on sm_80, each with the opcode of its products."""
HOPPER = {
    "tensor-copies": "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb32ic256ih14oc256oh14kh3ph1",
    "tensor-copies-wide": "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb32ic512ih14oc512oh14kh3ph1",
    "tensor-copies-parts": "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb32ic256ih56oc256oh56kh3ph1",
    "tensor-copies-teams": "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb32ic256ih56oc256oh56kh3ph1",
    "tensor-copies-96": "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb32ic96ih28oc96oh28kh3ph1",
    "tensor-copies-tf32": "--stag=axb --wtag=axb --dtag=axb --accuracy=any mb32ic256ih28oc256oh28kh3ph1",
    "side-by-side": "--stag=axb --dtag=axb --dt=bf16 g32mb32ic128ih56oc128oh56kh3ph1",
    "tensor-copies-backward": "--dir=BWD_D --stag=axb --wtag=axb --dtag=axb --dt=bf16 mb32ic256ih28oc256oh28kh3ph1",
}
"""Layers of which the copy engine of sm_90a brings the operands."""
WORDS = {
    "tensor-copies-teams": "--pack= --realise=hardware --teams=2 "
    + forward(128, n=128, slots=7, row="wgmma_m64n128k16_bf16"),
}
"""Configs other than the default one, by the names of texts."""
FEW_CHANNELS = {
    "depthwise": "--stag=axb --dtag=axb --dt=bf16 g96mb32ic96ih56oc96oh56kh7ph3",
    "few-a-group": "--stag=axb --dtag=axb --dt=bf16 --accuracy=strict g32mb32ic128ih56oc128oh56kh3ph1",
}
"""Layers with too few channels a group for fragments, unless groups stand side by side."""
BUDGETS = [
    *((name, level, line, "FFMA") for name, line in LAYERS.items() for level in ("sm_80", "sm_90a")),
    *((name, "sm_90a", line, "FFMA") for name, line in FEW_CHANNELS.items()),
    ("stem", "sm_90a", "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb32ic3ih224oc64oh112kh7sh2ph3", "HMMA"),
    *((name, "sm_80", line, opcode) for name, (line, opcode) in TENSOR_LAYERS.items()),
    *((name, "sm_90a", line, "HGMMA") for name, line in HOPPER.items()),
]  # fmt: skip


_AHEAD = ("--lane=oc --register=oc:64,oh:4,ow:16 --reduce=kh,kw,ic --instruction=mma_m16n8k16_bf16 --realise=pad_copy "
          "--group=oc:128,mb:2,oh:4,ow:16,ic:32 --shared=src,wei --pad=src:8,wei:8 --buffers=3 --copies=async")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("words", "products", "most"), [("", 0, 130), ("--load_ahead=yes", 28, 130),
                                                         ("--load_ahead=yes --rounds=yes", 28, 90)])
def test_products_of_warps_wait_for_no_factors_behind_a_barrier(words: str, products: int, most: int) -> None:
    """A warp with tiles of 64 x 64 has 32 products of factors that were loaded before the barrier, some of which may
    stand before it. In rounds, a step has fewer instructions besides its 64 products. Nothing is spilled.
    """
    skip_without("sm_80")
    line = "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb32ic256ih14oc256oh14kh3ph1"
    artifact = made(line, f"{_AHEAD} {words}", "sm_80")
    assembled, symbol = assemble_ptx(artifact.notes["ptx"], "sm_80"), artifact.entries["main"].symbol
    assert assembled.uses[symbol].spilled == 0
    text = disassembly(assembled.cubin)[symbol]
    counts = hot_loop(text, "HMMA")
    steps = counts["HMMA"] // 64
    found = products_behind_barriers(text, "HMMA")
    assert found >= products and (products or not found)
    assert counts.total() - counts["HMMA"] <= most * steps


OF_KINDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "sm_90a": {name: (line, f"--realise=hardware {words}") for name, (line, words) in KINDS.items()}, "sm_80": AMPERE,
}  # fmt: skip
"""Problems of all kinds with their configs, by levels whose code the disassembler reads."""
_LAST = "--stag=axb --wtag=axb --dtag=axb"
_LAYER, _DEPTHWISE = "mb32ic256ih28oc256oh28kh3ph1", "g384mb32ic384ih14oc384oh14kh3ph1"
_SCALES = "--attr-scales=src:common:0.5+wei:per_oc+dst:common:0.25"
RESULTS = {
    "f16": f"{_LAST} --dt=f16 {_LAYER}", "bf16": f"{_LAST} --dt=bf16 {_LAYER}",
    "f8": f"{_LAST} --dt=f8_e4m3:f8_e4m3:f8_e4m3 --accuracy=any {_LAYER}",
    "u8": f"{_LAST} --dt=u8:s8:u8 {_LAYER}", "u8, scales": f"{_LAST} --dt=u8:s8:u8 {_SCALES} {_LAYER}",
    "s8, scales": f"{_LAST} --dt=s8:s8:s8 {_SCALES} {_LAYER}",
    "u8, scales, zero point and relu":
        f"{_LAST} --dt=u8:s8:u8 {_SCALES} --attr-zero-points=dst:common:3 --attr-post-ops=relu {_LAYER}",
    "bf16, swish": f"{_LAST} --dt=bf16 --attr-post-ops=swish:1 {_LAYER}",
    "f16, depthwise": f"{_LAST} --dt=f16 {_DEPTHWISE}", "bf16, depthwise": f"{_LAST} --dt=bf16 {_DEPTHWISE}",
    "f8, depthwise": f"{_LAST} --dt=f8_e4m3:f8_e4m3:f8_e4m3 {_DEPTHWISE}",
    "u8, depthwise, scales": f"{_LAST} --dt=u8:s8:u8 {_SCALES} {_DEPTHWISE}",
}  # fmt: skip
"""Layers whose results have small types, and take the default configs."""
PRODUCTS = ("HGMMA", "IGMMA", "QGMMA", "HMMA", "IMMA", "IDP", "FFMA")
TO_FLOATS, TO_BYTES = ("F2F", "F2FP"), ("F2I", "F2IP", "I2IP")
FROM_SMALL = ("I2F", "I2FP", "HADD2")
CONVERSIONS = (*TO_FLOATS, *TO_BYTES, *FROM_SMALL)


def golden(path: Path, text: str, request: pytest.FixtureRequest) -> str:
    """Return the text at a path; write it where the option says so, and skip if another assembler made it."""
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    wanted, head = path.read_text(encoding="utf-8"), text.partition("\n")[0]
    if wanted.partition("\n")[0] != head:
        pytest.skip(f"{path.name} is of another assembler than {head}")
    return wanted


def tools_of(assembled: AssembledKernels) -> str:
    return f"{assembled.assembler}, LLVM {llvm_bind.llvm_version()}"


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "level", "line", "product"), BUDGETS, ids=[f"{x[0]}-{x[1]}" for x in BUDGETS])
def test_the_opcodes_of_a_hot_loop(
    name: str, level: str, line: str, product: str, request: pytest.FixtureRequest
) -> None:
    skip_without_disassembler(level)
    artifact = made(line, WORDS.get(name, ""), level)
    assembled, symbol = assemble_ptx(artifact.notes["ptx"], level), artifact.entries["main"].symbol
    use = assembled.uses[symbol]
    counts = hot_loop(disassembly(assembled.cubin)[symbol], product)
    lines = [line, str(use), *(f"{n:5} {opcode}" for opcode, n in sorted(counts.items()))]
    compare(f"{name}.{level}.txt", assembled, lines, request)
    assert counts[product]


def budget(kind: str, assembled: AssembledKernels) -> str:
    """Return a line of the opcodes, products, registers and conversions of the main kernel.

    A kernel whose warp groups multiply calls no function, or ptxas would run the products one after the other.
    """
    code = disassembly(assembled.cubin)["convsmith"]
    whole = roots(code)
    product = next(x for x in PRODUCTS if whole[x])
    assert not assembled.warnings and not (product.endswith("GMMA") and whole["CALL"]), kind
    loop = hot_loop(code, product)
    counts = [f"{whole.total() - whole['NOP']:5} opcodes", f"{loop.total():4} for {loop[product]:3} {product}",
              f"{assembled.uses['convsmith'].registers:3} registers"]  # fmt: skip
    return f"{kind:38} {', '.join([*counts, *(f'{whole[x]} {x}' for x in CONVERSIONS if whole[x])])}"


def compare(name: str, assembled: AssembledKernels, lines: list[str], request: pytest.FixtureRequest) -> None:
    text = "\n".join([tools_of(assembled), *lines]) + "\n"
    wanted = golden(HERE / name, text, request)
    assert text == wanted, "if this is as it should be: pytest tests/ptx --update-golden"


def test_a_long_epilogue_takes_few_registers() -> None:
    """It takes few beside the 64 of the sums, because it stores a slice before it computes the next one."""
    skip_without("sm_90a")
    use = assemble_ptx(made(RESULTS["bf16, swish"], "", "sm_90a").notes["ptx"], "sm_90a").uses["convsmith"]
    assert (use.spilled, use.stack) == (0, 0) and use.registers <= 64 + 48


def test_the_budget_of_results(request: pytest.FixtureRequest) -> None:
    """Most opcodes of these kernels are those that convert, scale and store results, or load small types."""
    skip_without_disassembler("sm_90a")
    layers = {name: assemble_ptx(made(line, "", "sm_90a").notes["ptx"], "sm_90a") for name, line in RESULTS.items()}
    uses = {name: x.uses["convsmith"] for name, x in layers.items()}
    assert all((x.spilled, x.stack) == (0, 0) for x in uses.values())
    compare("results.sm_90a.txt", layers["f16"], [budget(*x) for x in layers.items()], request)


def compiled(line: str, words: str, level: str) -> tuple[str, Kernel]:
    """Return the PTX of a problem under a config, and the main kernel."""
    with no_collection(), one_table():
        plan = plan_for(parse_problem(line), Config.parse(f"--target={level} --pack= {words}"), target(level))
        low = lower(plan)
        return emit(plan, low).notes["ptx"], low.kernel


def casts(kernel: Kernel) -> Counter[tuple[str, str]]:
    """Return how many numbers the stores of a kernel convert, by both types."""
    found: Counter[tuple[str, str]] = Counter()
    for s in statements_of(kernel.body):
        if isinstance(s, Store):
            for v in {x for x in walk(s.value) if isinstance(x, Cast)}:
                found[dtype_of(v.a).name, v.dtype.name] += max(lanes_of(v), 1)
    return found


def needed(found: Counter[tuple[str, str]], sources: tuple[str, ...], results: tuple[str, ...]) -> int:
    return sum(n for (of, to), n in found.items() if of in sources and to in results)


@pytest.mark.parametrize("level", OF_KINDS)
def test_the_budget_of_every_kind(level: str, request: pytest.FixtureRequest) -> None:
    """No kernel accesses local memory. An instruction converts one number or two; main kernels keep to their texts."""
    skip_without(level)
    lines = []
    for kind, (line, words) in OF_KINDS[level].items():
        ptx, kernel = compiled(line, words, level)
        assembled = assemble_ptx(ptx, level)
        codes = disassembly(assembled.cubin)
        assert all((x.stack, x.spilled, x.filled) == (0, 0, 0) for x in assembled.uses.values()), kind
        assert not any({"LDL", "STL"} & roots(x).keys() for x in codes.values()), kind
        whole, numbers = roots(codes["convsmith"]), casts(kernel)
        small = needed(numbers, ("f32",), ("f16", "bf16", "f8_e4m3", "f8_e5m2"))
        # LLVM drops conversions of columns that lie beyond the channels in all lanes.
        assert small * 0.45 <= sum(whole[x] for x in TO_FLOATS) <= small, kind
        sources = ("s32", "f32") if level == "sm_90a" else ("s32",)
        to_bytes = needed(numbers, sources, ("s8", "u8"))
        assert -(-to_bytes // 2) <= sum(whole[x] for x in TO_BYTES), kind
        assert sum(whole[x] for x in FROM_SMALL) <= needed(numbers, ("s32", "f16"), ("f32",)), kind
        lines.append(budget(kind, assembled))
    compare(f"kinds.{level}.txt", assembled, lines, request)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", VOLTA)
def test_every_result_of_sm_70_is_one_conversion(kind: str) -> None:
    """PTX has a conversion of single numbers there; no disassembler that is installed beside those of sm_90a reads the
    code.
    """
    line, words = VOLTA[kind]
    ptx, kernel = compiled(line, words, "sm_70")
    main = ptx[ptx.index(".entry convsmith(") :].partition("\n}")[0]
    assert main.count("cvt.rn.f16.f32") == needed(casts(kernel), ("f32",), ("f16",))


def test_every_text_belongs_to_a_layer() -> None:
    texts = {f"{name}.{level}.txt" for name, level, *_ in BUDGETS} | {f"kinds.{level}.txt" for level in OF_KINDS}
    texts.add("results.sm_90a.txt")
    assert {x.name for x in HERE.glob("*.txt")} == texts
