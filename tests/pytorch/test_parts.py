"""Parts of networks that torch.fx cannot trace: they keep signature and attributes, and one that fails is torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from convsmith.torch import optimize  # noqa: E402


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv2d(4, 4, 1, stride=1), 2.0

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        y = self.conv(x)
        return y if t is None else y + t


CALLS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "one tensor": lambda s, x: s.b(x),
    "two": lambda s, x: s.b(x, x),
    "by name": lambda s, x: s.b(x=x),
    "both": lambda s, x: s.b(x, t=x),
    "dtype of a weight": lambda s, x: s.c(x.to(s.c.weight.dtype)),
    "attribute of a convolution": lambda s, x: s.c(x) * s.c.stride[0],
    "attribute of a part": lambda s, x: s.b(x) * s.b.scale,
    "first alone, then two": lambda s, x: s.b(s.b(x), x),
}


@pytest.mark.parametrize("call", CALLS)
def test_parts_keep_signature_and_attributes(call: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b, self.c = Block(), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return CALLS[call](self, x) if x.sum() != 12345 else x

    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(1, 4, 6, 6)
    made = optimize(model, x, threads=1, keep_faster=False)
    torch.testing.assert_close(made(x), model(x))
    assert type(made) is Net and made.b.scale == 2.0 and made.c.weight.shape == (4, 4, 1, 1)
    rows = made.convsmith_report.rows
    assert rows and all(row.why for row in rows if row.runner == "torch")
