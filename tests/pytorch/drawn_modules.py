"""Random modules of PyTorch: a handful of lines of layers, functions, views, writes in place and conditions on shapes.

`DrawnModule(seed)` has the example `args` and `kwargs`. A line that PyTorch refuses on the example is drawn again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["DrawnModule"]

_LARGEST = 20_000
_LATEST = 5

Line = Callable[["DrawnModule", list[Tensor]], Tensor]


class DrawnModule(nn.Module):
    """A module in eval mode. Its forward runs `lines` one after the other, each of which adds a value or writes one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.r = r = Random(seed)
        torch.manual_seed(seed)
        self.layers, self.lines = nn.ModuleList(), list[Line]()
        self.register_buffer("seen", torch.zeros(()))
        self.gain = nn.Parameter(torch.rand(()) + 0.5)
        self.chosen, self.form = list[int](), r.choice(("tensor", "tuple", "dict", "nested"))
        shape = (r.choice((1, 2, 3)), r.choice((3, 4, 8)), *[r.choice((5, 6, 8, 9))] * r.choice((1, 2, 2, 2, 2, 3)))
        x = torch.randn(shape)
        if len(shape) == 4 and r.random() < 0.3:
            x = x.contiguous(memory_format=torch.channels_last)
        elif r.random() < 0.1:
            x = torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]
        self.args: tuple[Any, ...] = (x,)
        self.kwargs: dict[str, Any] = {}
        if r.random() < 0.3:
            self.kwargs["other"] = torch.randn(shape if r.random() < 0.5 else (shape[1], *[1] * (len(shape) - 2)))
        if r.random() < 0.3:
            self.kwargs["scale"] = r.choice((2, 0.5, torch.tensor(1.5)))
        self.eval()
        for _ in range(r.randint(4, 12)):
            self._draw()
        self._choose()

    def forward(self, x: Tensor, other: Tensor | None = None, scale: Any = None) -> Any:
        values = self._values(x, other, scale)
        for line in self.lines:
            values.append(line(self, values))
        found = [values[n] for n in self.chosen]
        if self.form == "tensor":
            return found[0]
        if self.form == "dict":
            return {f"y{n}": y for n, y in enumerate(found)}
        return tuple(found) if self.form == "tuple" else {"all": found, "first": (found[0], 3, None)}

    @staticmethod
    def _values(x: Tensor, other: Tensor | None, scale: Any) -> list[Tensor]:
        values = [x]
        if other is not None:
            values.append(other)
        if scale is not None:
            values.append(x * scale)
        return values

    def _run(self) -> list[Tensor]:
        args, kwargs = copy.deepcopy((self.args, self.kwargs))
        values = self._values(*args, kwargs.get("other"), kwargs.get("scale"))
        with torch.no_grad():
            for line in self.lines:
                values.append(line(self, values))
        return values

    def _draw(self) -> None:
        """Add a line that PyTorch takes."""
        for _ in range(12):
            values, count = self._run(), len(self.layers)
            n = self.r.choice(range(max(0, len(values) - _LATEST), len(values)))
            line = self.r.choice(_KINDS)(self, self.r, n, values)
            if line is None:
                continue
            self.lines.append(line)
            state = copy.deepcopy(self.state_dict())
            try:
                y = self._run()[-1]
                legal = isinstance(y, Tensor) and 0 < y.numel() <= _LARGEST and bool(y.isfinite().all())
                legal = legal and bool(y.abs().max() < 1e4)
            except Exception:  # PyTorch's own refusal
                legal = False
            if legal:
                return
            self.lines.pop()
            del self.layers[count:]
            self.load_state_dict({name: x for name, x in state.items() if name in self.state_dict()})

    def _choose(self) -> None:
        values = self._run()
        latest = len(values) - 1
        self.chosen = [latest, *(self.r.randrange(len(values)) for _ in range(self.r.choice((0, 0, 1, 2))))]
        with torch.no_grad():
            self.seen.zero_()  # type: ignore[operator]


# -- lines ------------------------------------------------------------------------------------------------------------


def _layer(m: DrawnModule, layer: nn.Module, n: int) -> Line:
    """A line that calls a new layer."""
    for p in (*layer.parameters(), *layer.buffers()):
        if p.is_floating_point() and p.dim() == 1:
            nn.init.uniform_(p, 0.5, 1.5)
    m.layers.append(layer.eval())
    k = len(m.layers) - 1
    return lambda m, v: m.layers[k](v[n])


def _convolution(m: DrawnModule, r: Random, n: int, v: list[Tensor]) -> Line | None:
    x = v[n]
    rank = x.dim() - 2
    if not 1 <= rank <= 3:
        return None
    ic = x.shape[1]
    g = r.choice([k for k in range(1, ic + 1) if ic % k == 0]) if r.random() < 0.5 else 1
    k, oc = r.choice((1, 1, 3, 3, 2)), g * r.choice((1, 2, 4, 5))
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    if r.random() < 0.2:
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[rank - 1]
        return _layer(m, kind(ic, oc, k, r.choice((1, 2)), padding=r.choice((0, k // 2)), groups=g), n)
    pad = r.choice((0, k // 2, k // 2, "same", "valid"))
    more = {"padding_mode": r.choice(("circular", "reflect", "replicate"))} if r.random() < 0.1 else {}
    stride = 1 if pad == "same" else r.choice((1, 1, 2))
    return _layer(m, kind(ic, oc, k, stride, pad, r.choice((1, 1, 2)), g, r.random() < 0.7, **more), n)


def _again(m: DrawnModule, r: Random, n: int, v: list[Tensor]) -> Line | None:
    """A layer that another line calls too."""
    if not len(m.layers):
        return None
    k = r.randrange(len(m.layers))
    return lambda m, v: m.layers[k](v[n])


def _functional_convolution(m: DrawnModule, r: Random, n: int, v: list[Tensor]) -> Line | None:
    found = [k for k, layer in enumerate(m.layers) if isinstance(layer, nn.Conv2d)]
    if not found:
        return None
    k, kind = r.choice(found), r.randrange(4)
    if kind == 0:
        return lambda m, v: functional.conv2d(v[n], m.layers[k].weight.flip(-1), padding=1)
    if kind == 1:
        return lambda m, v: functional.conv2d(v[n], m.layers[k].weight * m.gain, m.layers[k].bias, 1, 1)
    if kind == 2:
        return lambda m, v: functional.conv2d(v[n], m.layers[k].weight / v[n].shape[-1], groups=m.layers[k].groups)
    return lambda m, v: functional.conv_transpose2d(v[n], m.layers[k].weight, groups=m.layers[k].groups)


def _norm(m: DrawnModule, r: Random, n: int, v: list[Tensor]) -> Line | None:
    x = v[n]
    if x.dim() < 2:
        return None
    c, kind = x.shape[1], r.randrange(5)
    if kind <= 1 and 3 <= x.dim() <= 5:
        return _layer(m, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[x.dim() - 3](c, affine=r.random() < 0.7), n)
    if kind == 2:
        return _layer(m, nn.GroupNorm(r.choice([k for k in range(1, c + 1) if c % k == 0]), c), n)
    if kind == 3:
        return _layer(m, nn.LayerNorm(x.shape[r.choice((1, x.dim() - 1)) :]), n)
    return lambda m, v: functional.instance_norm(v[n])


def _linear(m: DrawnModule, r: Random, n: int, v: list[Tensor]) -> Line | None:
    made = nn.Linear(v[n].shape[-1] if v[n].dim() else 1, r.choice((1, 3, 8, 16)), bias=r.random() < 0.7)
    return _layer(m, made, n)


_UNARY: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.relu, functional.gelu, functional.silu, torch.sigmoid, torch.tanh, functional.hardswish, functional.relu6,
    functional.mish, functional.softplus, functional.elu, partial(functional.leaky_relu, negative_slope=0.1),
    torch.abs, torch.neg, torch.square, partial(torch.clamp, min=-1.0), partial(torch.clamp, max=1),
    partial(torch.clamp, min=-1, max=2), lambda x: x.abs().sqrt(), lambda x: x.abs().add(1).log(),
    lambda x: (-x.abs()).exp(), lambda x: 1 / (x.abs() + 1), lambda x: 3 - x, lambda x: x**2, lambda x: x.pow(3),
    lambda x: x.abs() ** 0.5, lambda x: x / 4, torch.sin, torch.erf, torch.reciprocal,
    lambda x: torch.rsqrt(x * x + 1), partial(functional.gelu, approximate="tanh"), torch.log1p,
    partial(functional.hardtanh, min_val=-2, max_val=1), functional.hardsigmoid, functional.selu,
    functional.softsign, functional.logsigmoid, functional.tanhshrink,
    partial(functional.threshold, threshold=0.1, value=7.0), torch.expm1, functional.softshrink,
    functional.hardshrink, torch.cos, torch.atan, lambda x: x * True, lambda x: x + 2, lambda x: torch.nan_to_num(x),
    lambda x: x.double().mul(2).float(), lambda x: x.to(torch.float64), lambda x: x.half(), lambda x: x.bfloat16(),
    lambda x: x.float(), lambda x: x.detach(), lambda x: x.clone(), lambda x: x.contiguous(),
    lambda x: (x * 4).int().float(), lambda x: x.type_as(x), lambda x: torch.dropout(x, 0.5, False), torch.positive,
    lambda x: x.sub(1, alpha=2), lambda x: torch.rsub(x, 1), lambda x: x.gt(0).float(), lambda x: (x > 0) & (x < 1),
    lambda x: x.long(), lambda x: x.bool(), lambda x: x.sgn(), lambda x: x.clamp_min(0),
    lambda x: torch.special.expit(x),
)  # fmt: skip


def _unary(m: DrawnModule, r: Random, n: int, v: list[Tensor]) -> Line | None:
    function = r.choice(_UNARY)
    return lambda m, v: function(v[n])


def _binary(m: DrawnModule, r: Random, n: int, v: list[Tensor]) -> Line | None:
    k = r.randrange(len(v))
    f = r.choice((
        torch.add, torch.add, torch.add, torch.sub, torch.mul, torch.mul, torch.maximum, torch.minimum,
        lambda a, b: torch.where(a > b, a, b), lambda a, b: a.lerp(b, 0.25), lambda a, b: torch.add(a, b, alpha=2),
        lambda a, b: a / (b.abs() + 1), lambda a, b: a.addcmul(a, b, value=0.5),
        lambda a, b: a.masked_fill(b > 0, 1.0), lambda a, b: a * b.sigmoid(), torch.matmul,
        lambda a, b: a @ b.transpose(-1, -2), torch.bmm, torch.mm, lambda a, b: a + b.mean((-1, -2), keepdim=True),
        torch.hypot, torch.atan2, torch.eq, torch.div, torch.outer,
        lambda a, b: torch.einsum("ncij,nckj->ncik", a, b), lambda a, b: torch.baddbmm(a, a, b, beta=0.5),
        lambda a, b: functional.scaled_dot_product_attention(a, b, b), torch.remainder,
        lambda a, b: torch.addmm(a, a, b, alpha=2), functional.linear,
        lambda a, b: functional.prelu(a, b.flatten()[:1]),
    ))  # fmt: skip
    return (lambda m, v: f(v[n], v[k])) if r.random() < 0.5 else (lambda m, v: f(v[k], v[n]))


def _written(m: DrawnModule, r: Random, n: int, v: list[Tensor]) -> Line | None:
    """A write in place, to a value or a view of it."""

    def assigned(x: Tensor, index: Any, y: Any) -> Tensor:
        x[index] = y
        return x

    def doubled(x: Tensor) -> Tensor:
        x *= 2
        return x

    f = r.choice((
        functional.relu_, lambda x: functional.silu(x, inplace=True), lambda x: x.add_(1), doubled, torch.sigmoid_,
        lambda x: x.clamp_(-1, 1), lambda x: assigned(x, (slice(None), 0), 0), lambda x: x.mul_(x.mean()),
        lambda x: assigned(x, (..., slice(1, None)), x[..., :1]), lambda x: x[:, :1].add_(1), lambda x: x.t_(),
        lambda x: x.view(-1).mul_(0.5), lambda x: x.zero_(), lambda x: x.fill_(2), lambda x: x.unsqueeze_(0),
        lambda x: x.transpose(0, 1).sub_(1), lambda x: assigned(x, x < 0, 0.1), lambda x: x.copy_(x.flip(0)),
        lambda x: x.squeeze_(), lambda x: x.masked_fill_(x > 0, -1),
        lambda x: x.index_add_(0, torch.tensor([0]), x[:1]), lambda x: torch.add(x, 1, out=torch.empty_like(x)),
        lambda x: x.neg_(), lambda x: x.chunk(2, 1)[1].mul_(3),
    ))  # fmt: skip
    return lambda m, v: f(v[n])


def _state(m: DrawnModule, r: Random, n: int, v: list[Tensor]) -> Line | None:
    """A line that reads, or writes, the module's own tensors, or its mode."""

    def seen(m: DrawnModule, v: list[Tensor]) -> Tensor:
        m.seen.add_(v[n].mean().float().detach())  # type: ignore[operator]
        return v[n] + 0

    def blocked(m: DrawnModule, v: list[Tensor]) -> Tensor:
        with torch.no_grad():
            return v[n] * m.gain

    def mixed(m: DrawnModule, v: list[Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return v[n] @ v[n].transpose(-1, -2)

    def wide(m: DrawnModule, v: list[Tensor]) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return v[n].float() * 2

    return r.choice((
        seen, blocked, mixed, wide, lambda m, v: v[n] * m.gain, lambda m, v: v[n] + m.seen,
        lambda m, v: functional.dropout(v[n], 0.5, m.training), lambda m, v: v[n] * 2 if m.training else v[n],
        lambda m, v: v[n] * sum(p.numel() for p in m.parameters()) / 100, lambda m, v: v[n] * m.gain.item(),
    ))  # fmt: skip


def _shaped(m: DrawnModule, r: Random, n: int, v: list[Tensor]) -> Line | None:
    """A line that computes with sizes."""

    def even(m: DrawnModule, v: list[Tensor]) -> Tensor:
        x = v[n]
        return functional.pad(x, (0, 1)) if x.shape[-1] % 2 else x[..., ::2]

    def halves(m: DrawnModule, v: list[Tensor]) -> Tensor:
        parts = [x.mean(1, keepdim=True) for x in v[n].split(2, 1)]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def loop(m: DrawnModule, v: list[Tensor]) -> Tensor:
        y = v[n]
        for k in range(min(v[n].shape[0], 3)):
            y = y + v[n][k] * k
        return y

    return r.choice((
        even, halves, loop, lambda m, v: v[n] / v[n].shape[-1] ** 0.5, lambda m, v: v[n].view(v[n].size(0), -1),
        lambda m, v: v[n].reshape(v[n].shape[0], v[n].shape[1], -1).mean(-1),
        lambda m, v: v[n] + torch.arange(v[n].size(-1)), lambda m, v: v[n] + torch.ones(v[n].shape),
        lambda m, v: v[n] * v[n].new_ones(v[n].shape[-1]), lambda m, v: v[n].narrow(1, 0, v[n].shape[1] // 2),
        lambda m, v: torch.zeros_like(v[n]) + v[n].ndim, lambda m, v: v[n].expand(2, *v[n].shape),
        lambda m, v: v[n] + torch.linspace(-1, 1, v[n].shape[-1]),
        lambda m, v: torch.full((v[n].shape[-1],), 0.5) * v[n], lambda m, v: v[n] * torch.eye(v[n].shape[-1])[0],
        lambda m, v: functional.interpolate(v[n], size=(v[n].shape[2] * 2, 7), mode="bilinear", align_corners=False),
    ))  # fmt: skip


def _moved(m: DrawnModule, r: Random, n: int, v: list[Tensor]) -> Line | None:
    axis, other = (r.randrange(-v[n].dim(), v[n].dim()) for _ in range(2)) if v[n].dim() else (0, 0)
    order, k = r.sample(range(v[n].dim()), v[n].dim()), r.randrange(len(v))
    f: Callable[[Tensor], Tensor] = r.choice((
        lambda x: x.transpose(axis, other), lambda x: x.permute(order), lambda x: x.flatten(1),
        lambda x: x.flatten(), lambda x: x.unsqueeze(axis), lambda x: x.squeeze(), lambda x: x.chunk(2, axis)[1],
        lambda x: x.split(1, axis)[0], lambda x: x[..., 1:], lambda x: x[:, ::2], lambda x: x[:, [1, 0]],
        lambda x: x[0], lambda x: x[:, None], lambda x: x.flip(axis), lambda x: x.roll(1, axis),
        lambda x: x.repeat(2, *[1] * (x.dim() - 1)), torch.t, lambda x: functional.pad(x, (1, 2), value=1.0),
        lambda x: functional.pad(x, (1, 1), mode="reflect"), lambda x: functional.pad(x, (-1, 0)),
        lambda x: functional.pad(x, (1, 0, 0, 1), mode="replicate"), lambda x: x.mT,
        lambda x: x.movedim(axis, other), lambda x: x.repeat_interleave(2, axis), lambda x: x.diagonal(0, -1, -2),
        lambda x: functional.pixel_shuffle(x, 2), lambda x: functional.channel_shuffle(x, 2),
        lambda x: x.unfold(axis, 2, 1), lambda x: functional.unfold(x, 2), lambda x: x.tril(),
        lambda x: x.select(axis, -1), lambda x: x.unbind(axis)[0],
        lambda x: x.index_select(axis, torch.tensor([0, 0])), lambda x: x.as_strided((2, 2), (1, 2)),
        lambda x: x.rot90(1, (0, 1)), lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.swapaxes(axis, other), lambda x: x.view(-1), lambda x: functional.pixel_unshuffle(x, 2),
        lambda x: x.tile(2), lambda x: x.unflatten(1, (-1, 2)), lambda x: x.ravel(), lambda x: x.view_as(x),
        lambda x: x.reshape(x.shape[::-1]), lambda x: x.expand_as(x), lambda x: x[..., -1:].expand(x.shape),
    ))  # fmt: skip
    if r.random() < 0.25:
        join = r.choice((torch.cat, torch.stack))
        return lambda m, v: join([v[n], v[k], v[n]][: 2 + (axis % 2)], axis)
    return lambda m, v: f(v[n])


def _reduced(m: DrawnModule, r: Random, n: int, v: list[Tensor]) -> Line | None:
    axis = r.randrange(-v[n].dim(), v[n].dim()) if v[n].dim() else 0
    keep = r.random() < 0.6
    f: Callable[[Tensor], Tensor] = r.choice((
        lambda x: x.mean(axis, keep), lambda x: x.sum(axis, keep), lambda x: x.amax(axis, keep),
        lambda x: x.softmax(axis), lambda x: x.mean((-1, -2), keep), lambda x: x.max(axis, keep)[0],
        lambda x: x.log_softmax(axis), lambda x: x.var(axis), lambda x: x.std(axis, keepdim=keep),
        lambda x: x.norm(dim=axis, keepdim=keep), lambda x: x.cumsum(axis), torch.mean,
        lambda x: functional.normalize(x, dim=axis), lambda x: x.argmax(axis, keep),
        lambda x: x.logsumexp(axis, keep), lambda x: x.topk(2, axis)[0], lambda x: x.sort(axis)[0],
        lambda x: x.prod(axis), lambda x: x.amin((0, 1)), torch.sum, lambda x: x - x.mean(), lambda x: x / x.norm(),
        lambda x: x.median(axis)[0], lambda x: x.any(axis),
    ))  # fmt: skip
    return lambda m, v: f(v[n])


def _pool(m: DrawnModule, r: Random, n: int, v: list[Tensor]) -> Line | None:
    x, k = v[n], r.choice((2, 3))
    rank = x.dim() - 2
    if not 1 <= rank <= 3:
        return None
    maximum, mean, fit, top = (getattr(functional, f"{name}{rank}d") for name in (
        "max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool",
    ))  # fmt: skip
    f = r.choice((
        lambda x: maximum(x, k), lambda x: maximum(x, k, 1, k // 2), lambda x: mean(x, k), lambda x: fit(x, 1),
        lambda x: mean(x, k, 2, k // 2, count_include_pad=False), lambda x: maximum(x, k, 2, ceil_mode=True),
        lambda x: fit(x, 3), lambda x: top(x, 2), lambda x: mean(x, k, 2, ceil_mode=True),
        lambda x: functional.interpolate(x, scale_factor=2), lambda x: functional.interpolate(x, scale_factor=0.5),
        lambda x: functional.lp_pool2d(x, 2, 2),
        lambda x: functional.interpolate(x, scale_factor=1.5, mode="bilinear"),
        lambda x: maximum(x, 2, return_indices=True)[0],
        lambda x: functional.interpolate(x, size=5, mode="bicubic", align_corners=True),
    ))  # fmt: skip
    return lambda m, v: f(v[n])


_KINDS: tuple[Callable[[DrawnModule, Random, int, list[Tensor]], Line | None], ...] = (
    *[_convolution] * 6, _again, _functional_convolution, *[_norm] * 2, *[_linear] * 2, *[_unary] * 4, *[_binary] * 4,
    *[_written] * 2, _state, *[_shaped] * 2, *[_moved] * 4, *[_reduced] * 2, *[_pool] * 2,
)  # fmt: skip
"""The lines, by how often they are drawn."""
