"""`record`: a frozen dataclass whose methods are functions, not generated source.

`dataclasses` generates and compiles the source of six methods of a frozen class. A process that takes a kernel from the
cache would spend a third of its time on that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["record"]

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
    from inspect import Parameter, Signature
    from operator import attrgetter

    def record(cls: type | None = None, /, *, frozen: bool, eq: bool = True, kw_only: bool = False) -> Any:
        """Return the class as `dataclasses.dataclass` does; a record is always frozen, and takes all of its fields."""
        if cls is None:
            return lambda decorated: record(decorated, frozen=frozen, eq=eq, kw_only=kw_only)
        assert frozen
        own = {*vars(cls)}
        made = dataclass(init=False, eq=False, repr=False, kw_only=kw_only)(cls)
        made.__init__, made.__signature__ = _constructor(made), _Constructed()
        made.__setattr__, made.__delattr__ = _refusal("assign to"), _refusal("delete")
        if "__repr__" not in own:
            made.__repr__ = _text
        if eq and "__eq__" not in own:
            names = [f.name for f in fields(made) if f.compare]
            content = attrgetter(*names) if len(names) > 1 else lambda x: tuple([getattr(x, name) for name in names])
            made.__eq__ = lambda self, other: (
                content(self) == content(other) if other.__class__ is self.__class__ else NotImplemented
            )
            if "__hash__" not in own:
                made.__hash__ = lambda self: hash(content(self))
        return made

    def _constructor(cls: type) -> Any:
        """Return the function that stores the values of the fields of a new instance."""
        assert all(f.init for f in fields(cls)), f"{cls.__qualname__} has a field with init=False"
        names = frozenset(f.name for f in fields(cls))
        order = [f.name for f in fields(cls) if not f.kw_only]
        defaults = {f.name: f.default for f in fields(cls) if f.default is not MISSING}
        factories = [(f.name, f.default_factory) for f in fields(cls) if f.default_factory is not MISSING]
        checked, put = hasattr(cls, "__post_init__"), object.__setattr__

        def construct(self: Any, /, *values: Any, **named: Any) -> None:
            given = dict(zip(order, values)) | named if values else named
            content = defaults | given
            for name, new in factories:
                if name not in given:
                    content[name] = new()
            if content.keys() != names or len(given) < len(values) + len(named):
                raise TypeError(_wrong_fields(cls, order[: len(values)], len(values), named, names - content.keys()))
            put(self, "__dict__", content)
            if checked:
                self.__post_init__()

        return construct

    def _wrong_fields(cls: type, placed: list[str], count: int, named: dict[str, Any], missing: set[str]) -> str:
        """Return the message for values that are not those of the fields."""
        names = [f.name for f in fields(cls)]
        faults = {
            "has no value of": [name for name in names if name in missing],
            "has two values of": [name for name in placed if name in named],
            "has no field": [name for name in named if name not in names],
            "takes fewer values by position than": [str(count)] if count > len(placed) else [],
        }
        return "; ".join(f"{cls.__qualname__} {fault} {', '.join(of)}" for fault, of in faults.items() if of)

    def _refusal(verb: str) -> Any:
        def refuse(self: Any, name: str, *_: object) -> None:
            raise FrozenInstanceError(f"cannot {verb} field {name!r}")

        return refuse

    class _Constructed:
        """The signature of a record's constructor."""

        def __get__(self, instance: object, cls: type) -> Signature:
            kinds = {True: Parameter.KEYWORD_ONLY, False: Parameter.POSITIONAL_OR_KEYWORD}
            ordered = sorted(fields(cls), key=lambda f: f.kw_only)
            return Signature(
                [Parameter(f.name, kinds[f.kw_only], default=_shown(f), annotation=f.type) for f in ordered]
            )

    def _shown(field: Any) -> Any:
        """Return the default of a field as a signature has it; `...` is for a new value of each instance."""
        if field.default_factory is not MISSING:
            return ...
        return Parameter.empty if field.default is MISSING else field.default

    def _text(self: Any) -> str:
        values = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr]
        return f"{type(self).__qualname__}({', '.join(values)})"
