"""The nest of two convolutions in the form that TVM prints, as annotated TIR.

A schedule of the library makes the nest (`schedule/library/blocked_chain.py`). The printer reads loops, extents,
guards, indices and allocations from the kernel. It prints TVM's names, and a comment on each nest: a copy of an
argument to a cache, an initialisation, a convolution, a copy back.

The printed loops run over whole blocks, as TVM's do: rows and columns in the last blocks that are no part of the result
are computed too, from elements beyond the end of a cache. In a kernel of the same schedule, loops end where the result
ends, and those rows and columns are zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain as joined

from convsmith.diag.errors import ConfigError
from convsmith.frontend.blocked_stages import blocked_stages
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, FloorDiv, Ge0, Index, Mod, Var, parts_of
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Alloc, Block, For, If, Kernel, Stmt, Store
from convsmith.ir.value import Binary, Cast, Const, Load, Value
from convsmith.ir.walk import loops_of, statements_of
from convsmith.machine.base import Machine
from convsmith.passes.share_storage import StoragePlan, plan_storage, share_storage
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import Stages
from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.library.blocked_chain import BlockLoops, blocked_nest
from convsmith.statement.fused import FusedStatements, in_whole_blocks
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement

__all__ = ["annotated_nest"]

_ARGUMENTS = {"src": "placeholder_8", "wei_1": "placeholder_7", "wei_2": "placeholder_6", "dst": "output_2"}
_CACHES = {
    "src_s": "packed_input.global", "mid": "temp_output", "wei_1_s": "packed_filter.global",
    "wei_2_s": "packed_filter_2.global", "acc2": "output.global", "acc": "temp_output.global",
}  # fmt: skip
"""TVM's names of arrays; filter #2 and the output have their own caches if caches share no memory. ``acc`` holds the
sums of a temporary output of another type.
"""
_TYPES = {"f32": "float32", "s32": "int32", "s8": "int8", "u8": "uint8", "f16": "float16", "bf16": "bfloat16"}
"""TVM's names of data types."""
_NAMES_OF_BUFFERS = (
    "// storage: src_s caches the input, wei_1_s and wei_2_s the filters; mid is temp_output, acc2 the output"
)
_FILTER = ("ko.inner", "co", "rh", "rw", "cio", "ki", "cii")
_COPIES = {
    "src": ("input", ("n", "ho.inner", "wo", "co", "hi", "wi", "ci")), "wei_1": ("filter #1", _FILTER),
    "wei_2": ("filter #2", _FILTER),
}  # fmt: skip
"""Arguments that are read through a cache: TVM's names of the cache, and of the loops that copy, one for each dim."""
_SUMS = {1: "temp output", 2: "output cache"}
"""Names of the buffers that hold the sums of a convolution, by the number of the convolution."""
_REUSES = {
    ("wei_1_s", "wei_2_s"): "// NOTE: reusing same filter cache",
    ("src_s", "acc2"): "// NOTE: reusing the input cache as the output cache",
    ("acc", "acc2"): "// NOTE: reusing the cache of the temp output's sums as the output cache",
}
"""Comments on pairs of buffers that share memory."""
_LOOPS = (
    ("ko.outer_1", "ho.outer_1", "ko.inner", "ho.inner", "wo", "hi", "wi", "ki", "rc.outer", "rc.inner", "rh", "rw"),
    (
        "ko.outer", "ho.outer", "ko.c.inner", "ho.c.inner", "wo.c", "hi.c", "wi.c", "ki.c", "rc.outer_1", "rc.inner_1",
        "rh_1", "rw_1",
    ),
)  # fmt: skip
"""TVM's names of the loops of both convolutions: over tiles, over the blocks of one, in a block, over blocks of terms
and in one, and over taps.
"""
_OUTSIDE = frozenset(_LOOPS[1][:2])
"""Loops over tiles of the second convolution."""
_IN_BLOCKS = tuple(names[5:8] for names in _LOOPS)
"""Loops of both convolutions in a block."""
_WRITTEN_BACK = dict(
    zip(_LOOPS[1][2:8], ("ko.inner_1", "ho.inner_1", "wo_1", "hi_1", "wi_1", "ki_1"), strict=True)
)
"""TVM's names of the loops that write the output cache back."""
_LOOP_NOTES = {
    "ko.outer_1": "// NOTE: compute over all output channels of conv2d #1 before computing conv2d #2",
    "ho.outer_1": "// NOTE: compute enough height of conv2d #1 before computing conv2d #2",
}


def annotated_nest(
    chain: Chain, machine: Machine, k_split: int = 1, h_split: int = 1, asynchronous: bool = False
) -> str:  # fmt: skip
    """Return the nest of ``chain``, two convolutions in blocks, its storage plan, and the places at which it reads past
    the end of a cache. With ``asynchronous`` copies, caches share no memory where a copy would wait.

    ConfigError if a stage does more with its sums than convert them.
    """
    stages, convs = blocked_stages(chain, k_split, h_split)
    for n, conv in enumerate(convs, start=1):
        if conv.post_ops or conv.bia_dt or conv.scales or conv.zero_points or not set(conv.dt) <= _TYPES.keys():
            raise ConfigError(
                "blocked-chain", f"--chain: stage {n} is {conv}; legal are sums of {', '.join(_TYPES)} that are "
                "converted at most, without bias, scales, zero points and post-ops",
            )  # fmt: skip
    with interning():
        joint = FusedStatements(stages, 0, tuple(_over_blocks(statement(conv)) for conv in convs))
        s = KernelSchedule(stages.whole, machine, joint.naive(), tuple(map(joint.renamed, joint.numbers)))
        names = _names(blocked_nest(s, k_split, h_split, convs[0].dtag))
        s.flatten()
        storage = plan_storage(s.kernel, asynchronous)
        shared = share_storage(s.kernel, asynchronous)
        nest = _Printer(shared, storage, names).text(_header(stages, convs))
        notes = [*_padding(chain, convs), *_past_the_end(convs), _NAMES_OF_BUFFERS]
        notes += [f"// {line}" for line in storage.lines]
        if place := machine.place(storage.after):
            notes.append(f"// the caches lie {place}")
    return "\n".join((nest, *notes))


def _padding(chain: Chain, convs: Sequence[Conv]) -> Iterator[str]:
    """Yield the note that the source is padded before, if the first stage of ``chain`` has padding."""
    first = chain.stages[0]
    if isinstance(first, Conv) and first.i != convs[0].i:
        given, padded = ("x".join(map(str, conv.i)) for conv in (first, convs[0]))
        yield f"// the source of {given} pixels is padded to {padded} before"


def _over_blocks(st: Statement) -> Statement:
    """Return ``st`` with loops that compute all elements of the blocks of its result."""
    longer = in_whole_blocks(st)
    sizes = {str(x): n for x, n in zip(longer.c.coords, longer.c.layout.shape)}
    return replace(longer, dims=tuple(replace(d, size=sizes.get(d.name, d.size)) for d in st.dims))


def _names(nests: Sequence[BlockLoops]) -> Mapping[str, str]:
    """Return TVM's names of the loops of both convolutions, by their names in the schedule."""
    loops = ((*x.tiles, x.channels, x.rows, x.columns, *x.inner, *x.terms, *x.taps) for x in nests)
    return {x.name: name for x, name in zip(joined(*loops), joined(*_LOOPS), strict=True)}


def _past_the_end(convs: Sequence[Conv]) -> Iterator[str]:
    """Yield remarks on elements that the printed nest computes beyond the result, and on the code that runs instead."""
    for n, conv in enumerate(convs, start=1):
        whole = conv.dst_layout.padded_shape[2:]
        if conv.o != whole:
            size, computed = (" x ".join(map(str, x)) for x in (conv.o, whole))
            yield f"// conv2d #{n} has {size} results. This nest, as TVM prints it, computes {computed}, and reads past"
            yield "// the end of a cache for it. The nest that runs computes the results; their blocks end with zeros."


def _header(stages: Stages, convs: Sequence[Conv]) -> list[str]:
    """Return the head of the function: its arguments, with the shapes and layouts of their arrays."""
    first, second = convs
    arrays = (
        ("output", "dst", second.dst_layout, second.dtag), ("placeholder_2", "wei_2", second.wei_layout, second.wtag),
        ("placeholder_1", "wei_1", first.wei_layout, first.wtag), ("placeholder", "src", first.src_layout, "NHWC"),
    )  # fmt: skip
    types = {t.name: _TYPES[t.dtype] for t in stages.whole.tensors}
    texts = [
        f"{name}: Buffer({_ARGUMENTS[own]}: Pointer({types[own]}), {types[own]}, {list(layout.physical_shape)}, [])"
        for name, own, layout, _ in arrays
    ]
    ends = [","] * (len(texts) - 1) + ["}"]
    width = max(map(len, texts)) + 1
    lines = [f"{text + end:{width}} // {tag.lower()}" for text, end, (*_, tag) in zip(texts, ends, arrays)]
    start = "  buffers = {"
    return [
        "primfn(placeholder_3: handle, placeholder_4: handle, placeholder_5: handle, output_1: handle) -> ()",
        '  attr = {"from_legacy_te_schedule": True, "global_symbol": "main", "tir.noalias": True}',
        start + f"\n{' ' * len(start)}".join(lines),
        "  buffer_map = {placeholder_3: placeholder, placeholder_4: placeholder_1, placeholder_5: placeholder_2, "
        "output_1: output} {",
    ]


class _Printer:
    def __init__(self, kernel: Kernel, storage: StoragePlan, loops: Mapping[str, str]) -> None:
        self.kernel, self.loops = kernel, loops
        self.caches = sorted(storage.groups, key=lambda group: (-max(x.bytes for x in group), group[0].first))
        pairs = ((group[0], x) for group in storage.groups for x in group)
        self.notes = {x.buffer.name: _REUSES.get((first.buffer.name, x.buffer.name)) for first, x in pairs}
        self.lines: list[str] = []
        self.names: Mapping[str, str] = {}
        """Other names of the loops around the current statement, by TVM's names, and of loops that fill a copy."""
        self.depth: dict[Var, int] = {}
        """Depths of the loops around the current statement."""

    def text(self, header: Sequence[str]) -> str:
        """Return the text of the kernel."""
        self.lines = list(header)
        for group in self.caches:
            name, size = _CACHES[group[0].buffer.name], max(x.buffer.size for x in group)
            kind = _type(group[0].buffer)
            self.put(1, f"allocate({name}: Pointer(global {kind}), {kind}, [{size}]), storage_scope = global;")
        self.stmt(self.kernel.body, 1)
        return "\n".join((*self.lines, "}"))

    def put(self, indent: int, line: str) -> None:
        self.lines.append("  " * indent + line)

    # -- statements -------------------------------------------------------------------------------------------------

    def stmt(self, s: Stmt, indent: int) -> None:
        if isinstance(s, Alloc):
            self.stmt(s.body, indent)
        elif isinstance(s, Block):
            for x in s.stmts:
                self.part(x, indent)
        elif isinstance(s, For):
            self.loop(s, indent)
        elif isinstance(s, If):
            conds = sorted(parts_of(s.cond), key=_bound)
            for n, cond in enumerate(conds):
                self.put(indent + n, f"if ({self.cond(cond)}) {{")
            self.stmt(s.body, indent + len(conds))
            for n in reversed(range(len(conds))):
                self.put(indent + n, "}")
        else:
            assert isinstance(s, Store)
            self.store(s, indent)

    def loop(self, s: For, indent: int) -> None:
        if note := _LOOP_NOTES.get(self.loops.get(s.var.name, "")):
            self.put(indent, note)
        self.depth[s.var] = len(self.depth)
        self.put(indent, f"for ({self.name(s.var)}: int32, {s.lo}, {s.hi}) {{")
        self.stmt(s.body, indent + 1)
        self.put(indent, "}")
        del self.depth[s.var]

    def part(self, s: Stmt, indent: int) -> None:
        """Print a statement of a block under a comment that describes it."""
        while isinstance(s, Alloc):
            s = s.body
        if isinstance(s, Block):
            self.stmt(s, indent)
            return
        outer = self.names
        for line in self.comment(s):
            self.put(indent, line)
        self.stmt(s, indent)
        self.names = outer

    def comment(self, s: Stmt) -> Iterator[str]:
        """Yield the comment of a statement, and set the names of its loops."""
        stores = [x for x in statements_of(s) if isinstance(x, Store)]
        first = stores[0]
        number = 1 if any(self.loops.get(x.var.name) in _IN_BLOCKS[0] for x in loops_of(s)) else 2
        value = first.value.a if isinstance(first.value, Cast) else first.value
        if isinstance(value, Const) and len(stores) > 1:
            yield f"// conv2d #{number}"
        elif len(stores) > 1:
            return
        elif isinstance(value, Load) and value.buffer in self.kernel.params:
            yield from self.copied(value.buffer.name)
        elif isinstance(value, Load) and number == 1:
            yield "// convert temp output"
        elif isinstance(value, Load):
            self.names = _WRITTEN_BACK
            yield "// write back output cache"
        elif isinstance(value, Const):
            self.names = {n: f"{n}.init" for n in joined(*_IN_BLOCKS)}
            yield f"// init {_SUMS[number]} to zero"
            if number == 2:
                yield from self.note("acc2")
        else:
            yield "// compute"

    def copied(self, name: str) -> Iterator[str]:
        words, loops = _COPIES[name]
        self.names = {f"{name}_s{d}": text for d, text in enumerate(loops)}
        yield f"// {words} cache read"
        yield from self.note(f"{name}_s")

    def note(self, buffer: str) -> Iterator[str]:
        """Yield the comment on a buffer that shares memory with an earlier one."""
        if text := self.notes.get(buffer):
            yield text

    def store(self, s: Store, indent: int) -> None:
        target = self.access(s.buffer, s.index)
        v = s.value
        if isinstance(v, Const):
            self.put(indent, f"{target} = {'0f32' if s.buffer.dtype.kind == 'float' else '0'}")
        elif not isinstance(v, Binary):
            self.put(indent, f"{target} = ")
            self.put(indent + 1, self.element(v))
        else:
            self.put(indent, f"{target} = ")
            self.sum(v, indent)

    def sum(self, v: Value, indent: int) -> None:
        """Print a sum or product over several lines."""
        if not isinstance(v, Binary):
            self.put(indent, self.element(v))
            return
        sign = {"add": "+ ", "mul": "*"}[v.op]
        self.put(indent, "(")
        self.sum(v.a, indent + 1)
        self.lines[-1] += f" {sign}"
        self.sum(v.b, indent + 1)
        self.put(indent, ")")

    # -- indices ----------------------------------------------------------------------------------------------------

    def element(self, v: Value) -> str:
        """Return the text of an element, which may be converted."""
        if isinstance(v, Cast):
            return f"cast({_TYPES[v.dtype.name]}, {self.element(v.a)})"
        assert isinstance(v, Load)
        return f"({_type(v.buffer)}*){self.access(v.buffer, v.index)}"

    def access(self, b: Buffer, index: tuple[Index, ...]) -> str:
        return f"{_ARGUMENTS.get(b.name) or _CACHES[b.name]}[{self.index(index[0])}]"

    def cond(self, c: Cond) -> str:
        """Return ``constant - e >= 0`` as ``e < constant + 1``."""
        assert isinstance(c, Ge0)
        return f"{self.index(c.arg.const - c.arg)} < {c.arg.const + 1}"

    def index(self, e: Index) -> str:
        """Return the terms in descending order of their factors."""
        terms = sorted(e.terms, key=self.order)
        texts = [self.atom(a) if c == 1 else f"({self.atom(a)}*{c})" for a, c in terms]
        if e.const or not texts:
            texts.append(str(e.const))
        out, *others = texts
        for text in others:
            out = f"({out} + {text})"
        return out

    def order(self, term: tuple[Index, int]) -> tuple[int, bool, bool, int]:
        atom, factor = term
        if not isinstance(atom, Var):
            return -factor, False, False, 0
        return -factor, True, self.loops.get(atom.name) in _OUTSIDE, self.depth[atom]

    def atom(self, a: Index) -> str:
        if isinstance(a, (FloorDiv, Mod)):
            name = "floordiv" if isinstance(a, FloorDiv) else "floormod"
            return f"{name}({self.index(a.num)}, {a.den})"
        assert isinstance(a, Var)
        return self.name(a)

    def name(self, loop: Var) -> str:
        """Return TVM's name of a loop."""
        own = self.loops.get(loop.name, loop.name)
        return self.names.get(own, own)


def _type(b: Buffer) -> str:
    """Return TVM's name of the type of the elements of a buffer."""
    return _TYPES[b.dtype.name]


def _bound(c: Cond) -> int:
    assert isinstance(c, Ge0)
    return c.arg.const
