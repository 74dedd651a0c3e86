"""The order in which groups take tiles: blocks of rows, if the operands of a product exceed the last cache.

Groups that run at the same time share the rows and the columns of their tiles. In the default order these tiles are a
few rows by all columns; in blocks they are closer to a square, which has fewer rows and columns for as many tiles.
"""

from __future__ import annotations

from math import prod

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.schedule.hardware_choice import EngineTile
from convsmith.statement.statement import Statement
from convsmith.tune.devices.device_features import residing

__all__ = ["in_l2_blocks", "lines_at_once"]


def lines_at_once(tiles: int, columns: int, tile: tuple[int, int], rows: int = 0) -> int:
    """Return the rows and columns of an operand that ``tiles`` read at the same time, of a result of so many
    ``columns`` of tiles: in blocks of ``rows`` of tiles, column after column, or row after row if that is 0.

    >>> lines_at_once(128, 32, (128, 256)), lines_at_once(128, 32, (128, 256), 16)
    (8704, 4096)
    """
    across = min(-(-tiles // rows) if rows else tiles, columns)
    down = -(-tiles // across) if not rows else min(rows, tiles)
    return down * tile[0] + across * tile[1]


def in_l2_blocks(x: EngineTile, st: Statement, machine: Machine) -> EngineTile:
    """Return ``x`` with the blocks of rows with which the groups that reside on the device at a time read fewest lines
    of the operands of ``st``; unchanged if an operand stays in the last cache, or if the default order reads as few.
    """
    assert machine.device is not None
    (rows, height), (columns, width), *_ = x.config.tiles_at("group")
    nbytes = [prod(v.layout.shape) * dtype(v.dtype).bytes for v in st.factors]
    down, across = (-(-prod(d.size for d in st.of(kind)) // n) for kind, n in (("m", height), ("n", width)))
    at_once = machine.device.units.count * residing(x, st, machine)
    if min(nbytes) <= machine.memories[-1].kept or x.groups != down * across or x.groups <= at_once:
        return x
    whole = (n for n in range(1, down + 1) if not down % n)
    fewest = min(whole, key=lambda n: (lines_at_once(at_once, across, x.tile, n), n))
    if lines_at_once(at_once, across, x.tile, fewest) >= lines_at_once(at_once, across, x.tile):
        return x
    config = x.config.changed(l2=((rows, fewest * height),), order=(columns, rows))
    return x._replace(config=config)
