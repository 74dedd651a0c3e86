"""The choice of an emulated processor by its features, and the exception that ends a run on it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from convsmith.diag.errors import UnsupportedError
from convsmith.diag.record import record

__all__ = ["Fault", "processor_for"]


@record(frozen=True)
class Fault:
    """An exception that ended a run: a description, and the instruction's address if it is known."""

    kind: str
    at: int | None


def processor_for(needs: Collection[str], processors: Mapping[str, frozenset[str]]) -> str:
    """Return the first of the processors that has the features. UnsupportedError if there is none."""
    for model, features in processors.items():
        if features.issuperset(needs):
            return model
    near, most = max(processors.items(), key=lambda item: len(item[1].intersection(needs)))
    lacking = ", ".join(name for name in needs if name not in most)
    raise UnsupportedError(f"no emulated processor has {', '.join(needs)}; nearest is {near}, without {lacking}",
                           code="target")  # fmt: skip
