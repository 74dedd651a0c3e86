"""`record`: a frozen dataclass whose comparison, hash and text are made of functions, not of generated source.

`dataclasses` generates and compiles the source of six methods of a frozen class. A process that takes a kernel from the
cache would spend a quarter of its time on that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["record"]

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import dataclass, fields
    from operator import attrgetter

    def record(cls: type | None = None, /, *, eq: bool = True, **options: Any) -> Any:
        """Return the class as `dataclasses.dataclass` does; `frozen=True` is among the options."""
        if cls is None:
            return lambda decorated: record(decorated, eq=eq, **options)
        own = {*vars(cls)}
        made = dataclass(eq=False, repr=False, **options)(cls)
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

    def _text(self: Any) -> str:
        values = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr]
        return f"{type(self).__qualname__}({', '.join(values)})"
