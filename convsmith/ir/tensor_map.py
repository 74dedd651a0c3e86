"""Tensor maps: the part of a tensor that a copy engine brings to shared memory in one operation.

A map describes a tensor by the sizes and strides of its dims, innermost first, and the part that one copy brings.  A
*tile* is a box of the tensor.  An *im2col* map brings a run of pixels instead, each with ``box[0]`` channels: the
pixels of a result that follow each other, each moved to the place that a tap of a window reads.  Elements outside of
the tensor are zeros.
"""

from __future__ import annotations

from math import prod

from convsmith.diag.record import record


@record(frozen=True)
class TensorMap:
    """The dims of a tensor and the part of it that a copy brings; sizes and strides count elements.

    ``dims`` and ``strides`` are innermost first, ``box`` is the part along each dim. With ``pixels``, the copy brings
    that number of pixels, of ``box[0]`` channels each: the dims between channels and images are walked in ``steps``
    from ``lower`` to their last coordinate plus ``upper``, the innermost first, then the next image follows.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    pixels: int = 0
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """NumberedRows of a copy: runs of `box[0]` elements."""
        return self.pixels or prod(self.box[1:])

    @property
    def size(self) -> int:
        """Elements of a copy."""
        return self.rows * self.box[0]
