"""`Requirements`: which sizes the source of a call may have, where one kernel serves many sizes."""

from __future__ import annotations

from convsmith.diag.record import record

__all__ = ["FIXED", "Requirements"]


@record(frozen=True)
class Requirements:
    """Requirements on the sizes of the tensor that a call gives: the source, or the gradient of the destination.

    ``sizes`` holds a pair for each dim of that tensor: its name, and its size, or None where any size is legal. The
    requirements of a kernel of fixed sizes are empty, and false.

    >>> print(Requirements((("ic", 8), ("ih", None))))
    ic == 8, ih >= 0
    """

    sizes: tuple[tuple[str, int | None], ...] = ()

    @property
    def fixed(self) -> dict[str, int]:
        """The dims that have one legal size, and that size."""
        return {name: size for name, size in self.sizes if size is not None}

    @property
    def free(self) -> tuple[str, ...]:
        """The dims that may have any size."""
        return tuple(name for name, size in self.sizes if size is None)

    def __bool__(self) -> bool:
        return bool(self.sizes)

    def __str__(self) -> str:
        return ", ".join(f"{name} >= 0" if size is None else f"{name} == {size}" for name, size in self.sizes)


FIXED = Requirements()
"""The requirements of a kernel whose sizes are all known when it is made."""
