"""A product whose operands a copy engine brings to shared memory, where warp groups multiply them."""

from __future__ import annotations

from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.library.finish import finish
from convsmith.schedule.library.warp_groups import GroupTile, warp_groups


def wgmma(
    s: KernelSchedule, rows: int = 128, columns: int = 64, terms: int = 64, slots: int = 4,
    instruction: str = "wgmma_m64n64k16_bf16",
) -> None:  # fmt: skip
    """Compute tiles of ``rows`` pixels and ``columns`` channels by an ``instruction`` of warp groups.

    The reduction runs in steps of ``terms`` channels of a tap. One warp lets the copy engine fetch both operands of a
    step, up to ``slots`` steps ahead; the other warps wait for a full slot, multiply, and release the slot. Each group
    of four warps multiplies as many rows as the instruction.
    """
    row = s.row(instruction)
    height, width = row.result.shape
    taps, images, lines, line = (s.loop("kh"), s.loop("kw")), s.loop("mb"), s.loop("oh"), s.loop("ow")
    s.reorder(s.loop("oc"), images, lines, line)
    tiles, tile = s.tile(s.fuse([images, lines, line]), rows, "gb", tail="round")
    blocks, block = s.tile(s.loop("oc"), columns, "gb", tail="round")
    steps, step = s.tile(s.loop("ic"), terms, "gb", tail="round")
    warps, pixel = s.tile(tile, height, "wi")
    fragments, channel = s.tile(block, width, "fi")
    products, term = s.tile(step, row.terms, "si")
    group = GroupTile((tiles, blocks), (*taps, steps), warps, fragments, products, (pixel, channel, term))
    operands = {"src": (warps, pixel, products, term), "wei": (fragments, channel, products, term)}
    warp_groups(s, group, lambda loop: s.bring(loop, operands), slots)
    s.unroll(products, fragments)
    s.flatten()
    s.fragments(row, pixel, channel, term)
    finish(s)
