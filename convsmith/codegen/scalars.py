"""Index arithmetic, conditions and addresses as LLVM text."""

from __future__ import annotations

from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import (
    Affine,
    And,
    Cond,
    Eq0,
    FloorDiv,
    Ge0,
    Index,
    Min,
    Mod,
    Never,
    Prod,
    Quot,
    Term,
    Var,
    from_sorted,
)


class Scopes:
    """Values that have been computed, in nested scopes that dominate each other."""

    def __init__(self) -> None:
        self.layers: list[dict[object, str]] = [{}]

    def get(self, key: object) -> str | None:
        for layer in reversed(self.layers):
            if key in layer:
                return layer[key]
        return None

    def set(self, key: object, value: str) -> None:
        self.layers[-1][key] = value

    def drop(self, buffer: Buffer) -> None:
        """Discard the addresses and loads of a buffer that will be in another place."""
        for layer in self.layers:
            for key in [k for k in layer if (k[0] if isinstance(k, tuple) else getattr(k, "buffer", None)) is buffer]:
                del layer[key]

    def push(self) -> None:
        self.layers.append({})

    def pop(self) -> None:
        self.layers.pop()


class ScalarEmitter:
    """The text of one function under construction: lines, names, and computed indices and addresses."""

    def __init__(self, bits: int) -> None:
        self.it = f"i{bits}"
        self.bits = bits
        self.lines: list[str] = []
        self.count = 0
        self.known = Scopes()
        self.vars: dict[Var, str] = {}
        self.pointers: dict[Var, str] = {}
        self.bases: dict[Buffer, str] = {}
        self.declared: dict[str, None] = {}
        self.has_unsigned_offsets = False

    def pointer(self, buffer: Buffer) -> str:
        """Return the type of pointers into a buffer."""
        return "ptr"

    def fresh(self, hint: str = "t") -> str:
        self.count += 1
        return f"%{hint}.{self.count}"

    def label(self, hint: str) -> str:
        self.count += 1
        return f"{hint}.{self.count}"

    def put(self, text: str) -> str:
        """Emit ``name = text`` and return the name."""
        self.count = count = self.count + 1
        self.lines.append(f"  %t.{count} = {text}")
        return f"%t.{count}"

    def index(self, e: Index) -> str:
        """Return the operand that holds an index."""
        if type(e) is Var:
            return self.vars[e]
        if not e.terms:
            return str(e.const)
        operand = self.known.get(e)
        if operand is None:
            operand = self._index(e)
            self.known.set(e, operand)
        return operand

    def _index(self, e: Index) -> str:
        it = self.it
        if isinstance(e, Affine):
            total = None
            for atom, c in e.terms:
                term = self.index(atom)
                if c not in (1, -1):
                    term = self.put(f"mul {it} {term}, {c}")
                if total is None:
                    total = term if c != -1 else self.put(f"sub {it} 0, {term}")
                else:
                    total = self.put(f"{'sub' if c == -1 else 'add'} {it} {total}, {term}")
            assert total is not None
            return self.put(f"add {it} {total}, {e.const}") if e.const else total
        if isinstance(e, (FloorDiv, Mod, Quot)):
            return self._divide(e)
        if isinstance(e, Prod):
            total = self.index(e.args[0])
            for a in e.args[1:]:
                total = self.put(f"mul {it} {total}, {self.index(a)}")
            return total
        name = "smin" if isinstance(e, Min) else "smax"
        total = None
        for a in e.args:  # type: ignore[attr-defined]
            x = self.index(a)
            if total is None:
                total = x
            else:
                self.declared[f"declare {it} @llvm.{name}.{it}({it}, {it})"] = None
                total = self.put(f"call {it} @llvm.{name}.{it}({it} {total}, {it} {x})")
        assert total is not None
        return total

    def _divide(self, e: FloorDiv | Mod | Quot) -> str:
        """Emit a floor division; LLVM's division rounds to zero, so a negative remainder decrements the quotient."""
        it, x = self.it, self.index(e.num)
        d = self.index(e.den) if isinstance(e, Quot) else e.den
        if isinstance(d, int) and d & (d - 1) == 0:
            shift = d.bit_length() - 1
            return self.put(f"ashr {it} {x}, {shift}" if isinstance(e, FloorDiv) else f"and {it} {x}, {d - 1}")
        rest = self.put(f"srem {it} {x}, {d}")
        below = self.put(f"icmp slt {it} {rest}, 0")
        if isinstance(e, Mod):
            raised = self.put(f"add {it} {rest}, {d}")
            return self.put(f"select i1 {below}, {it} {raised}, {it} {rest}")
        quotient = self.put(f"sdiv {it} {x}, {d}")
        one = self.put(f"sext i1 {below} to {it}")
        return self.put(f"add {it} {quotient}, {one}")

    def cond(self, c: Cond) -> str:
        """Return the i1 operand of a condition."""
        if isinstance(c, Ge0):
            return self.put(f"icmp sge {self.it} {self.index(c.arg)}, 0")
        if isinstance(c, Eq0):
            return self.put(f"icmp eq {self.it} {self.index(c.arg)}, 0")
        if isinstance(c, Never):
            return "false"
        assert isinstance(c, And)
        total = "true"
        for n, p in enumerate(c.parts):
            x = self.cond(p)
            total = x if n == 0 else self.put(f"and i1 {total}, {x}")
        return total

    def address(self, buffer: Buffer, e: Index) -> str:
        """Return the operand that points at an element: a carried or passed pointer or the buffer's start, plus an
        offset. If elements share a byte, the element must be the first of its byte.
        """
        key = (buffer, e)
        found = self.known.get(key)
        if found is not None:
            return found
        base, rest, _ = self.split_address(buffer, e)
        const, each = e.const, buffer.dtype.per_byte
        if each > 1:
            if const % each or any(c % each for _, c in rest):
                raise InternalError(f"element {e} of {buffer.name} may not be the first of a byte")
            rest, const = tuple((atom, c // each) for atom, c in rest), const // each
        if rest:
            moved = from_sorted(0, rest)
            base = self.put(
                f"getelementptr {buffer.dtype.llvm}, {self.pointer(buffer)} {base}, {self.it} {self.index(moved)}"
            )
        if const:
            form = "getelementptr nuw" if self.has_unsigned_offsets and const > 0 else "getelementptr"
            base = self.put(f"{form} {buffer.dtype.llvm}, {self.pointer(buffer)} {base}, i64 {const}")
        self.known.set(key, base)
        return base

    def split_address(self, buffer: Buffer, e: Index) -> tuple[str, tuple[Term, ...], Index]:
        """Return the pointer that the address of an element starts from, the terms that follow it, and both these and
        the constant as an offset.
        """
        base, rest = self.bases.get(buffer, ""), e.terms
        for n, (atom, c) in enumerate(rest):
            if c == 1 and atom in self.pointers:
                base = self.pointers[atom]
                rest = (*rest[:n], *rest[n + 1 :])
                break
        return base, rest, from_sorted(e.const, rest)
