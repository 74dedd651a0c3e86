"""Fetch the next part of an array into the second-level cache while tiles use the present one.

The tiles that use a part, such as the tiles of pixels that share the weights of a tile of channels, are equal pieces of
time. Each prefetches its share of the next part, so that memory delivers that part in all of this time, not while the
first tile waits for it. The part behind the last one begins where the array ends: a caller that reads another array
from there next, finds its beginning in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index, make_sum, minimum
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import Alloc, Block, Call, Carried, For, Function, If, Kernel, Let, Prefetch, Stmt, block
from convsmith.ir.walk import statements_of, variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.fetch_pixels import LINE


@stages(*FLATTENED, ensures=TENSORISED)
def fetch_next(kernel: Kernel, name: str, is_inside: bool = False, interleaved: bool = False) -> Kernel:
    """Prefetch the next part of the array ``name`` in the tiles that read a part with pointers that loops carry.

    Each tile reads all of a part. Of an ``interleaved`` array it reads some elements of every pixel, and a part has the
    pixels that the loops of a tile step through. A kernel whose parts are read by one tile each is unchanged.
    Prefetches stay in the array if they must be inside of it: in the last part, tiles prefetch the end of the array.
    Then they prefetch nothing where loops around them carry the pointer.

    Before::

        kernel k(w: f32[96], a: f32[12], c: f32[6])
          for o in 0 .. 2:
            for p in 0 .. 3:
              alloc acc: f32[] @register:
                acc[] = 0.0
                for i in 0 .. 4 carrying w.i: w = o * 48 step 12:
                  acc[] = acc[] + w[w.i] * a[i + p * 4]
                c[o * 3 + p] = acc[]

    After ``fetch_next("w")``::

        kernel k(w: f32[96], a: f32[12], c: f32[6])
          for o in 0 .. 2:
            for p in 0 .. 3:
              alloc acc: f32[] @register:
                acc[] = 0.0
                for i in 0 .. 4 carrying w.i: w = o * 48 step 12, w.i.next: w = o * 48 + p * 16 + 48 step 4:
                  prefetch w[w.i.next]
                  acc[] = acc[] + w[w.i] * a[i + p * 4]
                c[o * 3 + p] = acc[]
    """
    found = _Sites(kernel, name, is_inside, interleaved)
    found.visit(kernel.body, ())
    if not found.plan():
        return kernel
    functions = [_with_pointer(f, name, found) if f.name in found.tiles else f for f in kernel.functions]
    return replace(kernel, body=found.rebuilt(kernel.body), functions=tuple(functions))


@dataclass(eq=False)
class _Site:
    """A tile ``stmt``, a call or a statement with registers, in ``loops`` within its part of the array, which it begins
    to read ``at`` a position.

    It prefetches from ``start`` on, if that is given, one of ``tiles`` shares of the next part.
    """

    stmt: Stmt
    loops: tuple[For, ...]
    buffer: Buffer
    at: Index
    start: Index | None = None
    tiles: int = 0


@dataclass(eq=False)
class _Part:
    """The tiles that read one part of the array, in their order; the next part begins ``size`` elements after it."""

    size: int
    sites: list[_Site] = field(default_factory=list)

    @property
    def tiles(self) -> int:
        """The number of tiles that run; 0 if that is unknown."""
        counts = [_count(site.loops) for site in self.sites]
        return sum(counts) if all(counts) and self.size > 0 else 0


class _Sites:
    """The tiles of a kernel that read the array ``name``, in the order of the text; ``tiles`` are the shares of a part
    that the calls of a function prefetch. Prefetches stay in the array if it ``is_inside``.
    """

    def __init__(self, kernel: Kernel, name: str, is_inside: bool, interleaved: bool) -> None:
        self.name, self.is_inside, self.interleaved = name, is_inside, interleaved
        self.bodies = {f.name: f.body for f in kernel.functions}
        self.functions = {f.name: v for f in kernel.functions if (v := _pointer_of(f, name)) is not None}
        self.parts: dict[object, _Part] = {}
        self.sites: list[_Site] = []
        self.tiles: dict[str, int] = {}
        self._next = 0

    def visit(self, s: Stmt, loops: tuple[For, ...]) -> None:
        """Collect the tiles in ``s``, which stands in ``loops``."""
        if (at := self._position(s)) is not None:
            self._add(s, at, loops)
        elif isinstance(s, Block):
            for x in s.stmts:
                self.visit(x, loops)
        elif isinstance(s, For):
            self.visit(s.body, (*loops, s))
        elif isinstance(s, (If, Let, Alloc)):
            self.visit(s.body, loops)

    def _position(self, s: Stmt) -> tuple[Buffer, Index] | None:
        """Return the array and the position at which the tile ``s`` begins to read it; None if ``s`` is none."""
        if isinstance(s, Call):
            number = self.functions.get(s.function)
            return None if number is None else s.pointers[number]
        if not (isinstance(s, Alloc) and s.buffer.in_registers):
            return None
        carried = _carried(s, self.name)
        return None if carried is None else (carried.buffer, carried.init)

    def _add(self, s: Stmt, at: tuple[Buffer, Index], loops: tuple[For, ...]) -> None:
        buffer, e = at
        own = self._stepped(s) if self.interleaved else 0
        key, inner, size = (e, loops, own or (buffer.size - e.const if e.is_const else 0))
        for n, loop in enumerate(loops):
            if (moved := _moved(loop, e)) and abs(moved) >= own:
                key, inner, size = loop, loops[n + 1 :], own or moved  # type: ignore[assignment]
        site = _Site(s, inner, buffer, e)
        self.sites.append(site)
        part = self.parts.setdefault(key, _Part(size))
        part.sites.append(site)
        if self.is_inside and variables_of(e) & {c.var for loop in loops for c in loop.carried}:
            part.size = 0  # no minimum of a pointer and of an offset

    def _stepped(self, s: Stmt) -> int:
        """Return the elements that the outermost loop of a tile steps through in the array."""
        body = self.bodies[name] if (name := getattr(s, "function", "")) else s
        loop = next(x for x in statements_of(body) if isinstance(x, For) and _own(x, self.name) is not None)
        own = _own(loop, self.name)
        assert own is not None
        return _count((loop,)) * own.step

    def plan(self) -> bool:
        """Determine what each tile prefetches, and return whether there is such a tile.

        A function prefetches if all of its calls belong to parts of several tiles.
        """
        alone = {_function(site) for part in self.parts.values() if part.tiles < 2 for site in part.sites}
        for part in self.parts.values():
            if part.tiles < 2:
                continue
            share, before = -(-part.size // part.tiles), 0
            for site in part.sites:
                if not (name := _function(site)) or name not in alone:
                    site.start, step = site.at + (part.size + before * share), share
                    site.tiles = part.tiles
                    for loop in reversed(site.loops):
                        site.start += (loop.var - loop.lo) * step
                        step *= _count((loop,))
                    if self.is_inside:
                        body = self.bodies[name] if name else site.stmt
                        is_plain = not name or self._begins_at_pointer(body)
                        reach = (is_plain and _reach(body, self.name, part.tiles)) or part.size
                        site.start = minimum(site.start, site.buffer.size - reach)
                if name and name not in alone:
                    self.tiles[name] = min(self.tiles.get(name, part.tiles), part.tiles)
                before += _count(site.loops)
        return any(site.start is not None for site in self.sites)

    def _begins_at_pointer(self, body: Stmt) -> bool:
        """Return whether the loops of a function begin to read the array where a pointer of the caller points to."""
        carried = _carried(body, self.name)
        return carried is not None and len(carried.init.terms) == 1 and not carried.init.const

    def rebuilt(self, s: Stmt) -> Stmt:
        """Return ``s`` with tiles that prefetch; statements come in the order in which they were collected."""
        if self._position(s) is not None:
            site = self.sites[self._next]
            self._next += 1
            if site.start is None:
                return s
            if isinstance(s, Call):
                return Call(s.function, (*s.pointers, (site.buffer, site.start)), s.indices)
            assert isinstance(s, Alloc)
            return Alloc(s.buffer, _Fetching(self.name, site.tiles, {}, site.start - site.at).stmt(s.body))
        if isinstance(s, Block):
            return block(*map(self.rebuilt, s.stmts))
        return replace(s, body=self.rebuilt(s.body)) if isinstance(s, (For, If, Let, Alloc)) else s


def _function(site: _Site) -> str:
    """Return the function that a tile calls; empty if it calls none."""
    return site.stmt.function if isinstance(site.stmt, Call) else ""


def _count(loops: Sequence[For]) -> int:
    """Return how often a statement in ``loops`` runs; 0 if that is unknown."""
    return prod(x.hi.const - x.lo.const if x.lo.is_const and x.hi.is_const else 0 for x in loops)


def _moved(loop: For, e: Index) -> int:
    """Return the elements by which an iteration of ``loop`` moves the position ``e``; 0 if that varies."""
    steps = {loop.var: 1, **{c.var: c.step for c in loop.carried}}
    return sum(c * steps[a] for a, c in e.terms if isinstance(a, Var) and a in steps)


def _reach(s: Stmt, name: str, tiles: int) -> int:
    """Return the elements from the first to the last one that a tile prefetches; 0 if its loops are not one nest that
    begins at the position of the tile.
    """
    loops = [x for x in statements_of(s) if isinstance(x, For) and _own(x, name) is not None]
    if not loops:
        return 1
    outer, own = loops[0], _own(loops[0], name)
    assert own is not None
    nested = [x for x in statements_of(outer.body) if x in loops]
    is_nest = len(nested) == len(loops) - 1 and own.step >= 0
    step, count, inner = _slower(own.step, tiles), _count((outer,)), _reach(outer.body, name, tiles)
    begins = all(len(c.init.terms) == 1 and not c.init.const for x in nested if (c := _own(x, name)))
    return (count - 1) * step + max(inner, step) if is_nest and begins and count and inner else 0


def _own(loop: For, name: str) -> Carried | None:
    """Return the pointer into the array ``name`` that a loop carries."""
    return next((c for c in loop.carried if c.buffer.name == name), None)


def _slower(step: int, tiles: int) -> int:
    """Return the step of a pointer that moves at 1 / ``tiles`` of the speed of another one."""
    return -(-step // tiles)


def _carried(s: Stmt, name: str) -> Carried | None:
    """Return the first pointer into the array ``name`` that a loop in ``s`` carries."""
    loops = (x for x in statements_of(s) if isinstance(x, For))
    return next((c for loop in loops for c in loop.carried if c.buffer.name == name), None)


def _pointer_of(f: Function, name: str) -> int | None:
    """Return the number of the pointer from which loops of ``f`` carry pointers into the array ``name``."""
    carried = _carried(f.body, name)
    if carried is None:
        return None
    free = variables_of(carried.init)
    return next((n for n, (v, _) in enumerate(f.pointers) if v in free), None)


def _with_pointer(f: Function, name: str, found: _Sites) -> Function:
    """Return a function that prefetches from one more pointer on."""
    own, buffer = f.pointers[found.functions[f.name]]
    var = Var(f"ptr{len(f.pointers)}")
    body = _Fetching(name, found.tiles[f.name], {own: var}, as_index(0)).stmt(f.body)
    return replace(f, pointers=(*f.pointers, (var, buffer)), body=body)


class _Fetching(Rewriter):
    """Lets loops that carry a pointer into the array ``name`` carry another one, which moves at 1 / ``tiles`` of its
    speed, and prefetch there.

    ``twins`` are the pointers beside other ones; the first begins ``shift`` elements after its own.
    """

    def __init__(self, name: str, tiles: int, twins: Mapping[Var, Index], shift: Index) -> None:
        super().__init__()
        self.name, self.tiles, self.twins, self.shift = name, tiles, dict(twins), shift
        self.is_innermost = False

    def visit_For(self, s: For) -> Stmt:
        own = _own(s, self.name)
        if own is None:
            return self._For(s)
        twin = Carried(Var(f"{own.var.name}.next"), own.buffer, self._beside(own.init), _slower(own.step, self.tiles))
        self.twins[own.var] = twin.var
        self.is_innermost = True
        body = self.stmt(s.body)
        if self.is_innermost:
            line = LINE // own.buffer.dtype.bytes
            ahead = [Prefetch(own.buffer, (twin.var + n,)) for n in range(0, max(twin.step, 1), line)]
            body = block(*ahead, body)
        self.is_innermost = False
        return For(s.var, s.lo, s.hi, body, s.kind, (*s.carried, twin))

    def _beside(self, e: Index) -> Index:
        """Return the position beside the position ``e`` of a pointer."""
        pointers = [a for a, _ in e.terms if a in self.twins]
        if not pointers:
            return e + self.shift
        rest = {a: _slower(c, self.tiles) for a, c in e.terms if a not in self.twins}
        return self.twins[pointers[0]] + make_sum(e.const // self.tiles, rest)
