"""A product of a matrix of pixels and a matrix of weights in register tiles, for 1x1 and other convolutions without
pads.
"""

from __future__ import annotations

from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.library.finish import finish


def product(s: KernelSchedule, pixels: int = 6, vectors: int = 2) -> None:
    """Compute register tiles of ``pixels`` pixels by ``vectors`` vectors of channels, with packed weights.

    Threads share the tiles of pixels.
    """
    channels, images, rows, columns = (s.loop(name) for name in ("oc", "mb", "oh", "ow"))
    s.reorder(channels, images, rows, columns)
    around, pixel = s.tile(s.fuse([images, rows, columns]), pixels)
    tiles, channels = s.tile(channels, vectors * s.lanes, "ot")
    vector, lane = s.tile(channels, s.lanes, "vl")
    s.reorder(around, tiles, pixel, vector, lane)
    s.fission(pixel, vector, lane, room=((lane, s.lanes),))
    s.sink(pixel, vector, lane)
    s.pack("wei", room=((lane, s.lanes),))
    s.round_up(vector, lane)
    s.parallel(around)
    s.unroll(pixel, vector, lane)
    finish(s, [lane])
