"""`convsmith cache`: the cache of compiled kernels on disk."""

from __future__ import annotations

import click

from convsmith.cli.group import CommandGroup
from convsmith.cli.output import note
from convsmith.compiler.cache import disk_cache
from convsmith.compiler.instruments import remove_dumps

__all__ = ["cache"]


@click.group(cls=CommandGroup, epilog="Example: convsmith cache info")
def cache() -> None:
    """Look at the cache of compiled kernels, or empty it."""


@cache.command(epilog="Example: convsmith cache info")
def info() -> None:
    """Directory, mode, entries, bytes, and why it is not used, where that is so."""
    store = disk_cache()
    if store is None:
        note("the cache is off (CONVSMITH_CACHE)")
        return
    facts = store.info()
    note(f"directory  {facts.directory}\nmode       {facts.mode}\nentries    {facts.entries}")
    note(f"bytes      {facts.bytes} of {facts.limit}")
    if facts.problem:
        note(f"not used   {facts.problem}")


@cache.command(epilog="Example: convsmith cache clear")
def clear() -> None:
    """Remove all entries, and the files that `explain` left there."""
    store = disk_cache()
    if store is None:
        note("the cache is off (CONVSMITH_CACHE)")
        return
    note(f"removed {store.clear()} entries from {store.directory}")
    remove_dumps(store.directory)
