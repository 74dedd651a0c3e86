"""Index expressions as functions of Python, for accesses that run many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from convsmith.interp.memory import address_digits
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Affine, FloorDiv, Index, Max, Min, Mod, Prod, Quot, Var

__all__ = ["Position", "index_function", "position_function"]

Position = Callable[[Mapping[Var, int]], int | None]


def index_function(e: Index) -> Position:
    """Return the function from the values of variables to that of ``e``, or None where a variable has no value."""
    names: dict[Var, str] = {}
    return _function([], _text(e, names), names)


def position_function(buffer: Buffer, index: Sequence[Index]) -> Position:
    """Return the function from the values of variables to the position of an element in the memory of ``buffer``.

    The function returns None where a coordinate lies outside of the shape, or a variable has no value.
    """
    names: dict[Var, str] = {}
    lines = [f"x{n} = {_text(i, names)}" for n, i in enumerate(index)]
    inside = " and ".join(f"0 <= x{n} < {size}" for n, size in enumerate(buffer.shape))
    digits = [
        f"x{dim} // {below} {f'% {size}' if size else ''} * {stride}"
        for dim, below, size, stride in address_digits(buffer)
    ]
    return _function(lines, f"{' + '.join(digits) or 0} if {inside or True} else None", names)


def _function(lines: Sequence[str], value: str, names: Mapping[Var, str]) -> Position:
    body = "".join(f"        {x}\n" for x in (*lines, f"return {value}"))
    space: dict[str, object] = {name: v for v, name in names.items()}
    exec(f"def at(env):\n    try:\n{body}    except KeyError:\n        return None\n", space)
    return space["at"]  # type: ignore[return-value]


def _text(e: Index, names: dict[Var, str]) -> str:
    """The text of an index in Python; ``names`` receives those of its variables."""
    match e:
        case Var():
            return f"env[{names.setdefault(e, f'v{len(names)}')}]"
        case Affine():
            return "(" + " + ".join([str(e.const), *(f"{_text(atom, names)} * {c}" for atom, c in e.terms)]) + ")"
        case FloorDiv():
            return f"({_text(e.num, names)} // {e.den})"
        case Mod():
            return f"({_text(e.num, names)} % {e.den})"
        case Quot():
            return f"({_text(e.num, names)} // {_text(e.den, names)})"
    assert isinstance(e, Min | Max | Prod)
    parts = [_text(x, names) for x in e.args]
    return f"({' * '.join(parts)})" if isinstance(e, Prod) else f"{type(e).__name__.lower()}({', '.join(parts)})"
