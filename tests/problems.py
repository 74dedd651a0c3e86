"""Random problems of every kind, and random configs for them."""

from __future__ import annotations

import random
from dataclasses import replace

from convsmith.diag.errors import ConfigError, UsageError
from convsmith.ir.intern import interning
from convsmith.layout.layout import Layout
from convsmith.layout.tags import print_strided
from convsmith.machine.base import Machine
from convsmith.problem import Conv, Matmul, Problem
from convsmith.problem.attributes import ZERO_POINTS, Quantity
from convsmith.problem.post_ops import parse_post_ops
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import REALISATIONS
from convsmith.schedule.kernel import scheduled
from convsmith.schedule.loops import fused_dims, loops_after_fusing
from convsmith.schedule.product_shape import ProductShape, rows
from convsmith.schedule.registers import filled_lanes
from convsmith.statement.offsets import flips, summed
from convsmith.statement.parts import PART, splits
from convsmith.statement.phases import phased, phases
from convsmith.statement.statement import KINDS, Statement
from convsmith.statement.views import statement

TAGS = {
    1: ("abx", "axb", "aBc4b", "aBc16b", "aBc8b", "cab", "ABc4b2a"),
    2: ("abx", "axb", "aBcd4b", "aBcd16b", "aBcd8b", "dbac", "aBCd4b2c"),
    3: ("abx", "axb", "aBcde4b", "aBcde16b", "aBcde8b", "edcba", "ABcde2b2a"),
}
WEIGHT_TAGS = {
    False: {1: ("axb", "ABc4b4a"), 2: ("axb", "ABcd4b4a"), 3: ("axb", "ABcde4b4a")},
    True: {1: ("axb", "aBCd4c4b"), 2: ("axb", "aBCde4c4b"), 3: ("axb", "aBCdef4c4b")},
}
MATRIX_TAGS = {2: ("ab", "ba", "aB4b"), 3: ("abc", "acb", "bac", "aBc4b")}
POST_OPS = ("relu", "relu:0.5", "clip:-3:5", "clip_v2:0:6", "relu+clip:1:7")
STEPS = (
    "relu", "relu:0.5", "clip:-3:5", "clip_v2:0:6", "abs", "linear:2:1", "linear:1:1:0.5", "bounded_relu:20", "square",
    "round", "hardsigmoid:0.25:0.5", "prelu:per_oc", "prelu", "prelu:per_tensor", "add:f32:per_oc", "add:f32", "ne:f32",
    "sub:s8:per_tensor", "mul:f32:common", "max:f32:per_oc", "min:u8:per_tensor", "div:f32:per_oc", "ge:f32:per_oc",
    "lt:f32:common", "add:bf16:per_oc", "mul:s32:per_oc",
)  # fmt: skip
"""Post-ops whose results do not hang on how a function is approximated."""

INTEGER_STEPS = (
    "s32_add:per_oc", "s32_add:per_tensor", "s32_mul:common:17", "s32_mulh:common:1518500250", "s32_mulh:per_oc",
    "s32_rshift:common:3", "s32_rshift:per_oc", "s32_shl:common:4", "s32_max:common:-50", "s32_min",
    "s32_and:common:255", "s32_rescale:65025:105", "s32_scale:per_oc", "s32_scale:common:0.37",
    "s32_scale_up:common:0.125", "s32_scale_up:per_oc",
)  # fmt: skip
"""Post-ops that go with no others."""

SUMS = ("sum", "sum:0.5", "sum:2:1")
EXTENTS = (1, 2, 3, 5, 7, 11, 13, 4, 8, 16, 17, 31)
FLOATS = ("f32", "bf16", "f16")
FORWARD_TYPES = (
    "f32", "f64", "bf16", "f16", "f32:bf16:f32", "bf16:bf16:f32", "bf16:bf16:s8", "f16:f16:f32", "f32:f32:u8",
    "u8:s8:s32", "u8:s8:f32", "u8:s8:u8", "u8:s8:s8", "s8:s8:s32", "s8:s8:f32", "s8:s8:s8", "s8:s8:bf16", "u8:u8:s32",
    "s8:u8:f32", "u8:s8:s16",
)  # fmt: skip
SOURCE_TYPES = ("f32", "f64", "bf16", "f16", "f32:bf16:f32", "f32:bf16:bf16", "s32:s8:u8", "s8:s8:u8", "f32:s8:s8")
WEIGHT_TYPES = ("f32", "f64", "bf16", "f16", "bf16:f32:bf16", "f32:bf16:f32", "f16:f32:f16")


# -- problems
def exact(problem: Problem) -> Problem:
    """The problem without transforms, whose kernels are exact on integers."""
    return replace(problem, accuracy="strict")


def random_convolution(rng: random.Random, macs: int = 60_000) -> Conv:
    """A legal forward convolution of at most ``macs`` multiplications, in f32."""
    while True:
        problem = _convolution(rng, macs)
        if problem is not None:
            return problem


def random_problem(rng: random.Random, macs: int = 60_000) -> Problem:
    """A legal problem of any kind, direction and types, with what may follow its sums."""
    kind = rng.choice(("FWD_D", "FWD_D", "FWD_D", "BWD_D", "BWD_D", "BWD_W", "matmul"))
    if kind == "matmul":
        return with_attributes(_product(rng, macs), rng)
    problem = random_convolution(rng, macs)
    if rng.random() < 0.25:
        problem = replace(problem, deconv=True, i=problem.o, o=problem.i)
    problem = with_options(replace(problem, dir=kind), rng, post_ops=False)
    types = {"FWD_D": FORWARD_TYPES, "BWD_D": SOURCE_TYPES, "BWD_W": WEIGHT_TYPES}[kind]
    return with_attributes(replace(problem, dt=_types(rng.choice(types))), rng)


def _types(text: str) -> tuple[str, str, str]:
    a, b, c = text.split(":") * (1 if ":" in text else 3)
    return a, b, c


def _product(rng: random.Random, macs: int) -> Matmul:
    while True:
        m, n, k = (rng.choice((1, 2, 3, 5, 7, 16, 17, 31) if macs > 2000 else (1, 2, 3, 5, 7)) for _ in range(3))
        b = rng.choice((1, 2, 3))
        if b * m * n * k <= macs:
            break
    src, wei = rng.choice((((m, k), (k, n)), ((b, m, k), (b, k, n)), ((b, m, k), (1, k, n)), ((1, m, k), (b, k, n))))
    tags = MATRIX_TAGS[len(src)]
    return Matmul(
        src=src, wei=wei, dt=_types(rng.choice(FORWARD_TYPES)), stag=rng.choice(tags), wtag=rng.choice(tags),
        dtag=rng.choice(tags),
    )  # fmt: skip


def with_attributes(problem: Problem, rng: random.Random) -> Problem:
    """The problem, often with a bias, scales, zero points and post-ops."""
    double = problem.acc == "f64"
    if problem.factors == ("f16", "f16"):
        problem = replace(problem, acc_mode=rng.choice(("strict", "any", "f16")))
    if rng.random() < 0.4 and not double:
        policies = {"src": ("common",), "wei": ("common", "per_oc"), "dst": ("common", "per_oc")}
        if problem.dir == "BWD_D":
            policies = {"src": ("common", "per_oc"), "wei": ("common",), "dst": ("common",)}
        if problem.dir != "BWD_W":
            problem = replace(problem, scales=_quantities(policies, rng, (0.5, 2.0, 0.25), "f32"))
    if not problem.forward:
        return problem
    if rng.random() < 0.3 and problem.acc == "s32":
        along_source = f"per_dim_{problem.source_channels}"
        policies = {"src": ("common", along_source), "wei": ("common", "per_oc"), "dst": ("common", "per_oc")}
        problem = replace(problem, zero_points=_quantities(policies, rng, (1, 3, -2), "s32"))
    if rng.random() < 0.4:
        bias_type = rng.choice(("", "", "s32", "s8") if problem.acc == "s32" else ("", "" if double else "bf16"))
        if isinstance(problem, Matmul):
            problem = replace(problem, bia_mask=rng.randrange(1 << problem.rank), bia_dt=bias_type)
        else:
            problem = replace(problem, dir="FWD_B", bia_dt=bias_type)  # type: ignore[call-arg]
    if rng.random() < 0.4:
        steps = rng.sample(STEPS, rng.choice((1, 1, 2, 3)))
        if rng.random() < 0.4:
            steps.insert(rng.randrange(len(steps) + 1), rng.choice(SUMS))
        problem = replace(problem, post_ops=parse_post_ops("+".join(steps)))
    elif problem.acc == "s32" and not (problem.scales or problem.bias or problem.quantity(ZERO_POINTS, "dst")):
        steps = rng.sample(INTEGER_STEPS, rng.choice((0, 1, 2, 4)))
        problem = replace(problem, post_ops=parse_post_ops("+".join(steps))) if steps else problem
    return problem


def _quantities(
    policies: dict[str, tuple[str, ...]], rng: random.Random, values: tuple[float, ...], dtype: str
) -> tuple[Quantity, ...]:
    found = []
    for argument, legal in policies.items():
        if rng.random() < 0.5:
            policy = rng.choice(legal)
            given = (rng.choice(values),) if policy == "common" else ()
            found.append(Quantity(argument, policy, tuple(map(float, given)), dtype))
    return tuple(found)


def _convolution(rng: random.Random, macs: int) -> Conv | None:
    rank = rng.choice((1, 2, 2, 2, 3))
    small = macs < 2000
    kind = rng.choice(("dense", "dense", "dense", "groups", "depthwise"))
    channels = (1, 2, 3, 4, 5) if small else (1, 2, 3, 5, 7, 8, 13, 16, 17, 24, 31, 32, 37)
    g = 1 if kind == "dense" else rng.choice((2, 3, 4) if small else (2, 3, 4, 7, 16, 19))
    icg, ocg = (1, rng.choice((1, 1, 2))) if kind == "depthwise" else (rng.choice(channels), rng.choice(channels))
    k = [rng.choice((1, 1, 2, 3, 3, 5)) for _ in range(rank)]
    d = [rng.choice((0, 0, 0, 1, 2)) for _ in range(rank)]
    whole = [(taps - 1) * (holes + 1) + 1 for taps, holes in zip(k, d)]
    # Strides and pads beyond the kernel too: pixels that no tap meets, and outputs that see padding alone.
    s = [rng.choice((1, 1, 1, 2, 3, size + 1)) for size in whole]
    i = [rng.choice((1, 2, 3, 4, 5) if small else EXTENTS) for _ in range(rank)]
    p = [rng.choice((0, 0, 1, 2, 4, size, size + 2)) for size in whole]
    o = []
    for n in range(rank):
        back = rng.choice((p[n], 0, 1, 3, -1, -(s[n] - 1), whole[n] + 1))
        o.append((i[n] + p[n] + back - whole[n]) // s[n] + 1)
    if any(x < 1 for x in o):
        return None
    mb = rng.choice((1, 1, 1, 2, 3))
    cost = mb * g * icg * ocg
    for n in range(rank):
        cost *= k[n] * o[n]
    if cost > macs:
        return None
    tags = TAGS[rank]
    has_groups = g > 1 or rng.random() < 0.1
    try:
        return Conv(
            mb=mb, ic=g * icg, oc=g * ocg, i=tuple(i), o=tuple(o), k=tuple(k), s=tuple(s), d=tuple(d), p=tuple(p),
            g=g, has_groups=has_groups, dir=rng.choice(("FWD_B", "FWD_D")),
            stag=rng.choice(tags), dtag=rng.choice(tags), wtag=rng.choice(("any", *WEIGHT_TAGS[has_groups][rank])),
        )  # fmt: skip
    except UsageError:
        return None


def with_options(problem: Conv, rng: random.Random, post_ops: bool = True) -> Conv:
    """The problem, half the time with a post-op, and now and then with slack in its tensors."""
    tags = {}
    for tag, layout in (("stag", problem.src_layout), ("wtag", problem.wei_layout), ("dtag", problem.dst_layout)):
        if rng.random() < 0.15:
            tags[tag] = with_slack(layout, rng)
    chosen = parse_post_ops(rng.choice(POST_OPS)) if post_ops and rng.random() < 0.5 else ()
    return replace(problem, post_ops=chosen, **tags)


def with_slack(layout: Layout, rng: random.Random) -> str:
    """A tag of the same blocks with memory between most of them that belongs to no element."""
    stride, blocks = 1, []
    for b in reversed(layout.blocks):
        stride = max(stride, 1)
        blocks.append((b.dim, b.size, stride))
        stride = stride * max(b.size, 1) + rng.choice((0, 0, 1, 3))
    return print_strided(tuple(reversed(blocks)))


# -- few channels
def _window(rng: random.Random, g: int, ic: int, oc: int) -> str:
    """Sizes of a convolution along one axis or two."""
    taps, stride, pixels = rng.choice((1, 3, 5)), rng.choice((1, 1, 2)), rng.choice((7, 14, 20, 33, 50))
    pad = taps // 2
    out = (pixels + 2 * pad - taps) // stride + 1
    axes = ("h", "w") if rng.random() < 0.6 else ("w",)
    around = "".join(f"i{a}{pixels}o{a}{out}k{a}{taps}s{a}{stride}p{a}{pad}" for a in axes)
    return f"{f'g{g}' if g > 1 else ''}mb{rng.choice((1, 2))}ic{g * ic}oc{g * oc}{around}"


def few_channels_a_group(rng: random.Random) -> str:
    """Some channels a group, which fill no vector, channels last."""
    channels, g = rng.choice((2, 3, 5, 6, 7, 9, 10, 11, 13, 15)), rng.choice((2, 3, 8, 32))
    direction = rng.choice(("FWD_D", "BWD_D", "BWD_W"))
    return f"--dir={direction} --stag=axb --dtag=axb {_window(rng, g, channels, channels)}"


def gradient_of_few_channels(rng: random.Random) -> str:
    """Gradients of weights with few channels on one side, in both plain layouts."""
    few, many = rng.randint(1, 15), rng.choice((1, 2, 8, 16, 48, 100))
    ic, oc = rng.choice(((few, many), (many, few)))
    tag, g = rng.choice(("abx", "abx", "axb")), rng.choice((1, 1, 1, 4))
    return f"--dir=BWD_W --stag={tag} --dtag={tag} {_window(rng, g, ic, oc)}"


# -- configs
def with_instruction(config: Config, problem: Problem, target: Machine) -> Config:
    """The config with an instruction that adds up as many products as it has terms, where one serves."""
    with interning():
        try:
            st = scheduled(problem, config, target)
            found = list(rows(st, target))
        except ConfigError:
            return config
        for row in found:
            named = config.changed(instruction=row.name)
            try:
                ProductShape.of(st, target, named)
            except ConfigError:
                continue
            return named
    return config


def random_config(rng: random.Random, problem: Problem, target: Machine, threads: int = 1) -> Config:
    """A config that is mostly legal; one that is not shall raise ConfigError."""
    with interning():
        st = statement(problem, target)
        flip = rng.choice(flips(problem, st))
        sums = summed(problem, st, flip) if rng.random() < 0.7 else None
        st = sums or st
        unit = rng.choice(ProductShape.choices(st, target))
        possible = list(phases(st))
        named = tuple(rng.sample(possible, rng.choice((1, len(possible))))) if possible and rng.random() < 0.5 else ()
        whole, st = st, phased(st, named)
    if unit.rows > 1:
        return with_instruction(_fragment_config(rng, st, unit, target, threads), problem, target)
    kinds = {d.name: d.kind for d in sorted(st.dims, key=lambda d: KINDS.index(d.kind))}
    names = list(kinds)
    fuse = []
    if rng.random() < 0.4 and len(names) > 1:
        at = rng.randrange(len(names) - 1)
        a, b = names[at], names[at + 1]
        fuse.append((a, b))
        names[at : at + 2] = [f"{a}_{b}"]
        kinds[f"{a}_{b}"] = "n" if "n" in (kinds[a], kinds[b]) else kinds[b]
        if rng.random() < 0.3 and at < len(names) - 1:
            fuse.append((names[at], names[at + 1]))
            kinds[f"{names[at]}_{names[at + 1]}"] = kinds[names[at + 1]]
            names[at : at + 2] = [f"{names[at]}_{names[at + 1]}"]
    reductions = [n for n in names if kinds[n] == "k"]
    others = [n for n in names if n not in reductions]
    output = [n for n in others if kinds[n] in ("n", "batch")] or others
    lane = rng.choice([*output, *output, *output, *reductions, *(others if rng.random() < 0.2 else [])])
    terms: tuple[tuple[str, int], ...] = ()
    free = [n for n in reductions if n != lane]
    if free and rng.random() < (0.8 if unit.dot else 0.2):
        inner = [n for n in free if n == st.reduce[-1]] or free
        size = unit.terms if unit.dot and rng.random() < 0.9 else rng.choice((1, 2, 3, 4))
        terms = ((rng.choice((*inner, *inner, *free)), size),)
    used = unit if terms or not unit.dot else ProductShape.plain(st, target)
    lanes = filled_lanes(st, fused_dims(Config(target.name, lane, fuse=tuple(fuse)), lane), used)
    tile = {}
    for n in others:
        if n != lane and rng.random() < 0.35:
            tile[n] = rng.choice((2, 3, 4, 5, 7))
    for n in reductions:
        if n != lane and n not in dict(terms) and rng.random() < 0.25:
            tile[n] = rng.choice((2, 3, 4))
    if lane in others and rng.random() < 0.9:
        tile[lane] = lanes * rng.choice((1, 1, 2, 3)) + (rng.random() < 0.03)
    rng.shuffle(others)
    rng.shuffle(reductions)
    block = []
    for n in names if rng.random() < 0.25 else ():
        if rng.random() < 0.5:
            block.append((n, max(tile.get(n, 1), dict(terms).get(n, 1), lanes * (n == lane)) * rng.choice((1, 2, 3))))
    rng.shuffle(block)
    config = Config(
        target=target.name, lane=lane, fuse=tuple(fuse), register=tuple(tile.items()), cache=tuple(block),
        order=tuple(others) if rng.random() < 0.7 else (), reduce=tuple(reductions) if rng.random() < 0.7 else (),
        k_step=terms, realise=rng.choice(("peel", "peel", "peel", "peel", "mask", *REALISATIONS)),
        pack=(st.b.name,) if rng.random() < 0.85 else (), pieces=rng.choice((1, 2, 4, 8, 8, 16)),
        offsets="sums" if sums else "each", flip=flip if sums else (), outline=rng.random() < 0.7, threads=threads,
        phases=named,
    )  # fmt: skip
    config = config.changed(spill_sums=rng.random() < 0.3)
    config = _holding(config, whole) if rng.random() < 0.2 and not fuse else config
    if config.realise == "pad_copy":
        tiled = {d.axis for d in st.dims if d.name in (lane, *tile, *dict(terms))}
        taps = [d.name for d in st.of("k") if d.axis and d.axis not in tiled]
        config = config.changed(restrict=tuple(rng.sample(taps, rng.randrange(len(taps) + 1))))
    return with_instruction(config, problem, target)


def _holding(config: Config, st: Statement) -> Config:
    """The config with B in registers: a tile holds whole sums, and the loops that do not move B are innermost."""
    loops = loops_after_fusing(st, config)
    moving = {d.name for d in st.of("batch", "n")}
    order = sorted(loops.of("batch", "n", "m"), key=lambda n: moving.isdisjoint(loops.dims[n]))
    kept = {n: size for n, size in config.tiles_at("register") if loops.kinds[n] != "k"}
    whole = {n: loops.extents[n] for n in loops.of("k") if loops.extents[n] > 1}
    return config.changed(
        register=tuple((kept | whole).items()), k_step=(), cache=(), order=tuple(order), resident=(st.b.name,)
    )


def with_split(rng: random.Random, problem: Problem, config: Config, target: Machine) -> Config:
    """The config with a reduction loop in parts, where it can have them."""
    with interning():
        st = statement(problem, target)
    ways = [(d.name, p) for d in st.of("k") for p in range(2, min(d.size, 8) + 1) if not d.size % p]
    if not ways or not splits(st):
        return config
    return config.changed(split=(rng.choice(ways),), order=(PART, *config.order) if config.order else ())


def _fragment_config(rng: random.Random, st: Statement, unit: ProductShape, target: Machine, threads: int) -> Config:
    """One that computes with fragments, if nothing is in the way."""
    pixels = [d.name for d in st.of("m")][-1]
    tile = {st.n: unit.lanes * rng.choice((1, 2)), pixels: rng.choice((2, 3, 4, 5, 6))}
    return Config(
        target=target.name, lane=st.n, register=tuple(tile.items()), k_step=((st.reduce[-1], unit.terms),),
        realise=rng.choice(("peel", "pad_copy", "pad_copy")), pieces=rng.choice((1, 4, 8)),
        outline=rng.random() < 0.7, threads=threads,
    )  # fmt: skip
