"""The tiers of the suite: the cases of a test that the normal tier runs, and those that it leaves to the wide tier.

The normal tier runs one case in n of a test marked `sampled(n, "a", "b")`, or more if more are needed for every value
of the parameters a and b to occur; for `sampled(n, "a+b")` every pair of values occurs. A problem's line is covered
option by option: every value of every option occurs. The other cases get the mark `wide`; those that have it already,
or are slow, are in no sample. Where they repeat each other, `sampled(n, ..., wide=m)` leaves one case in m to the wide
tier, or more until every value of its parameters occurs, and every pair of values of three parameters or more; the rest
is marked `slow`. With `every="c"` the values of c occur in the wide tier, and may be absent from the sample. The sample
depends on the cases' names alone, so every process selects the same cases. A case that a planted fault names
(tests/faults) is always in it.

Tests that are skipped without PyTorch get the mark `torch`, by which they run alone once it is installed.
"""

from __future__ import annotations

import inspect
import linecache
import re
import tomllib
from collections.abc import Collection, Hashable, Iterable, Iterator
from functools import lru_cache
from itertools import combinations, groupby, product
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest


def mark_wide_cases(items: Iterable[pytest.Item]) -> None:
    """Mark those of `items` as `wide`, or `slow`, that belong to a sampled test and not to its sample."""
    for _, group in groupby(items, lambda item: item.nodeid.partition("[")[0]):
        cases = [case for case in group if not any(map(case.get_closest_marker, ("slow", "wide")))]
        mark = cases[0].get_closest_marker("sampled") if cases else None
        if mark is not None:
            n, *names = mark.args
            kept = _sample_of(cases, names, n)
            pairs = ["+".join(pair) for pair in combinations(names, 2)] if len(names) > 2 else names
            every = [*pairs, *mark.kwargs.get("every", "").split()]
            wide = _sample_of(cases, every, mark.kwargs["wide"]) if mark.kwargs else set(range(len(cases)))
            for number, case in enumerate(cases):
                if number not in kept:
                    case.add_marker(pytest.mark.wide if number in wide else pytest.mark.slow)


def _sample_of(cases: list[pytest.Item], names: list[str], n: int) -> set[int]:
    traits = [frozenset(_traits(_parameters(case), names)) for case in cases]
    chosen = {number for number, case in enumerate(cases) if case.nodeid in named_by_faults()}
    return sample([case.nodeid for case in cases], traits, n, chosen)


def _parameters(case: pytest.Item) -> dict[str, Any]:
    return case.callspec.params  # type: ignore[attr-defined,no-any-return]


@lru_cache(None)
def named_by_faults() -> frozenset[str]:
    """Return the cases that planted faults name as the tests that find them."""
    tables = (tomllib.loads(path.read_text()) for path in (Path(__file__).parent / "faults").glob("*.toml"))
    return frozenset(row["test"] for table in tables for row in table.values())


def mark_torch_cases(items: Iterable[pytest.Item]) -> None:
    """Mark the cases among `items` as `torch` whose module, function or fixture asks for PyTorch."""
    for case in items:
        if isinstance(case, pytest.Function):
            fixtures = (f.func for fs in case._fixtureinfo.name2fixturedefs.values() for f in fs)
            if _module_asks(case.module) or any(map(_asks, (case.function, *fixtures))):
                case.add_marker(pytest.mark.torch)


_ASKS = re.compile(r'importorskip\("(convsmith\.)?torch')


@lru_cache(None)
def _asks(function: Any) -> bool:
    inner = inspect.unwrap(function)
    # The source of a file is at hand, that of each function takes long to find.
    return _file_asks(inspect.getfile(inner)) and _ASKS.search(inspect.getsource(inner)) is not None


@lru_cache(None)
def _file_asks(file: str) -> bool:
    return _ASKS.search("".join(linecache.getlines(file))) is not None


@lru_cache(None)
def _module_asks(module: Any) -> bool:
    pattern = rf"^(\w+ = )?pytest\.{_ASKS.pattern}"
    return re.search(pattern, inspect.getsource(module), re.MULTILINE) is not None


def sample(names: list[str], traits: list[frozenset[Hashable]], n: int, chosen: Collection[int] = ()) -> set[int]:
    """Return the numbers of cases that cover all `traits`, and of others up to one in `n`, by the hashes of `names`.

    The numbers `chosen` are among them.
    """
    order = sorted(range(len(names)), key=lambda number: (crc32(names[number].encode()), number))
    kept, covered = [*chosen], set[Hashable]().union(*(traits[number] for number in chosen))
    for number in order:
        if not traits[number] <= covered:
            kept.append(number)
            covered |= traits[number]
    others = [number for number in order if number not in set(kept)]
    return {*kept, *others[: max(-(-len(order) // n) - len(kept), 0)]}


def _traits(values: dict[str, Any], names: Iterable[str]) -> Iterator[Hashable]:
    """The values of the parameters `names`, where "a+b" is a pair; of a problem's line the values of its options."""
    for name in names:
        for value in product(*(list(_parts(values[part])) for part in name.split("+"))):
            yield name, value


def _parts(value: Any) -> Iterator[Hashable]:
    """A value as something to compare, or the options of a problem's line and their values."""
    if isinstance(value, str) and "--" in value:
        for option, text in re.findall(r"--([\w-]+)=?(\S*)", value):
            yield option
            yield from ((option, word) for word in re.split(r"[:+,]", text) if re.match("[a-zA-Z]", word))
    elif isinstance(value, str | int | float):
        yield value
    else:
        yield getattr(value, "name", id(value))
