"""A depthwise convolution whose lanes are channels, as XNNPACK's micro-kernels compute it."""

from __future__ import annotations

from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.library.finish import finish


def depthwise(s: KernelSchedule, vectors: int = 2, table: str = "sections") -> None:
    """Compute tiles of channels of ``vectors`` vectors, pixel by pixel of a row, with straight-line code for all taps.

    A ``table`` of pointers locates the pixels of the taps, column by column. Weights are packed in that order, followed
    by the bias of the tile. Threads share the rows.
    """
    s.indirect(table)
    images, rows, columns = s.loop("mb"), s.loop("oh"), s.loop("ow")
    tiles, channels = s.tile(s.loop("g"), vectors * s.lanes, "ot")
    vector, lane = s.tile(channels, s.lanes, "vl")
    s.reorder(images, rows, columns, tiles, s.loop("oc"), vector, lane)
    s.fission(vector, lane, room=((lane, s.lanes),))
    s.sink(vector, lane)
    taps = s.loop("kw"), s.loop("kh")
    s.reorder(*taps)
    s.pack([name for name in ("wei", "bia") if s.reads(name)], room=((lane, s.lanes),))
    s.round_up(vector, lane)
    s.parallel(images, rows)
    s.unroll(*taps, vector, lane)
    finish(s, [lane])
