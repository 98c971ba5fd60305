"""One graph with all operators whose difference between torch and onnxruntime is measured."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate, one_hot, pad, softplus

WEIGHT = torch.linspace(-1, 1, 3 * 20).reshape(3, 20)
KERNEL = torch.linspace(-1, 1, 4 * 3 * 9).reshape(4, 3, 3, 3)

# Arguments: two vectors with NaN, infinities and denormals, a positive vector, an image of bytes.
Operator = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
OPERATORS: dict[str, Operator] = {
    "add": lambda x, y, p, i: x + y,
    "sub": lambda x, y, p, i: x - y,
    "rsub": lambda x, y, p, i: torch.rsub(x, y),
    "mul": lambda x, y, p, i: x * y,
    "div": lambda x, y, p, i: x / y,
    "neg": lambda x, y, p, i: -x,
    "abs": lambda x, y, p, i: x.abs(),
    "sign": lambda x, y, p, i: x.sign(),
    "clamp": lambda x, y, p, i: x.clamp(-1.0, 0.5),
    "clamp_min": lambda x, y, p, i: x.clamp_min(0.25),
    "clamp_max": lambda x, y, p, i: x.clamp_max(-0.25),
    "clamp.Tensor": lambda x, y, p, i: x.clamp(WEIGHT[0], WEIGHT[0] + 1),
    "maximum": lambda x, y, p, i: torch.maximum(x, y),
    "minimum": lambda x, y, p, i: torch.minimum(x, y),
    "eq": lambda x, y, p, i: x == y,
    "ne": lambda x, y, p, i: x != y,
    "lt": lambda x, y, p, i: x < y,
    "le": lambda x, y, p, i: x <= y,
    "gt": lambda x, y, p, i: x > y,
    "ge": lambda x, y, p, i: x >= y,
    "where": lambda x, y, p, i: torch.where(x > y, x, y),
    "masked_fill": lambda x, y, p, i: x.masked_fill(y > 0, 2.0),
    "logical_and": lambda x, y, p, i: (x > 0).logical_and(y > 0),
    "logical_or": lambda x, y, p, i: (x > 0).logical_or(y > 0),
    "logical_not": lambda x, y, p, i: (x > 0).logical_not(),
    "logical_xor": lambda x, y, p, i: (x > 0).logical_xor(y > 0),
    "bitwise_and": lambda x, y, p, i: (x > 0) & (y > 0),
    "bitwise_or": lambda x, y, p, i: (x > 0) | (y > 0),
    "bitwise_xor": lambda x, y, p, i: (x > 0) ^ (y > 0),
    "bitwise_not": lambda x, y, p, i: ~(x > 0),
    "isnan": lambda x, y, p, i: x.isnan(),
    "isinf": lambda x, y, p, i: x.isinf(),
    "isfinite": lambda x, y, p, i: x.isfinite(),
    "floor": lambda x, y, p, i: x.floor(),
    "ceil": lambda x, y, p, i: x.ceil(),
    "trunc": lambda x, y, p, i: x.trunc(),
    "round": lambda x, y, p, i: x.round(),
    "reciprocal": lambda x, y, p, i: x.reciprocal(),
    "pow": lambda x, y, p, i: x**2 + p**0.5 + x**3,
    "argmax": lambda x, y, p, i: i.argmax(-1),
    "argmin": lambda x, y, p, i: i.argmin(-1),
    "any": lambda x, y, p, i: (x > 3).any(),
    "all": lambda x, y, p, i: (x > -3).all(),
    "one_hot": lambda x, y, p, i: one_hot(i[0, 0, :3].long() % 5, 5),
    "cat": lambda x, y, p, i: torch.cat([x, y]),
    "stack": lambda x, y, p, i: torch.stack([x, y], -1),
    "view": lambda x, y, p, i: x.view(4, 5).transpose(0, 1).reshape(20),
    "permute": lambda x, y, p, i: i.permute(2, 0, 1),
    "select": lambda x, y, p, i: x[3] + x[2:7:2],
    "index": lambda x, y, p, i: x[torch.tensor([3, 1, 1])],
    "index_select": lambda x, y, p, i: x.index_select(0, torch.tensor([3, 1, 1])),
    "gather": lambda x, y, p, i: x.gather(0, i[0, 0, :3].long() % 20),
    "split": lambda x, y, p, i: torch.stack(x.split([5, 10, 5])[0::2]),
    "unbind": lambda x, y, p, i: torch.stack(x.view(4, 5).unbind(0)[1:]),
    "unflatten": lambda x, y, p, i: x.unflatten(0, (4, 5)).movedim(0, 1),
    "movedim": lambda x, y, p, i: x.view(4, 5).movedim(0, 1),
    "narrow": lambda x, y, p, i: x.narrow(0, 3, 4),
    "chunk": lambda x, y, p, i: torch.stack(x.chunk(4)),
    "diagonal": lambda x, y, p, i: x.view(4, 5).diagonal(),
    "expand": lambda x, y, p, i: x[:1].expand(5).contiguous(),
    "repeat": lambda x, y, p, i: x.repeat(2),
    "flip": lambda x, y, p, i: x.flip(0),
    "roll": lambda x, y, p, i: x.roll(3),
    "pad": lambda x, y, p, i: pad(x[None, None], (1, 2, 3, 4), mode="constant"),
    "constant_pad_nd": lambda x, y, p, i: pad(x, (1, 2), value=0.5),
    "slice_scatter": lambda x, y, p, i: x.slice_scatter(y[:5], 0, 2, 7),
    "_to_copy": lambda x, y, p, i: i.float() + (x > 0).float()[0],
    "full_like": lambda x, y, p, i: torch.full_like(x, 2.0) + torch.zeros_like(x),
    "sqrt": lambda x, y, p, i: p.sqrt(),
    "rsqrt": lambda x, y, p, i: p.rsqrt(),
    "exp": lambda x, y, p, i: y.clamp(-20.0, 20.0).exp(),
    "log": lambda x, y, p, i: p.log(),
    "tanh": lambda x, y, p, i: y.tanh(),
    "sigmoid": lambda x, y, p, i: y.sigmoid(),
    "softplus": lambda x, y, p, i: softplus(y),
    "sin": lambda x, y, p, i: y.sin(),
    "cos": lambda x, y, p, i: y.cos(),
    "sum": lambda x, y, p, i: p.sum(0, keepdim=True),
    "mean": lambda x, y, p, i: p.mean(0, keepdim=True),
    "var": lambda x, y, p, i: p.var(0),
    "cumsum": lambda x, y, p, i: p.cumsum(0),
    "prod": lambda x, y, p, i: p.clamp(0.5, 2.0).prod(),
    "matmul": lambda x, y, p, i: WEIGHT @ p.view(20, 1),
    "linear": lambda x, y, p, i: nn.functional.linear(p.view(1, 20), WEIGHT),
    "conv2d": lambda x, y, p, i: conv2d(i.permute(2, 0, 1)[None] / 255, KERNEL),
    "_upsample_bilinear2d_aa": lambda x, y, p, i: _resized(i, "bilinear", antialias=True),
    "_upsample_bicubic2d_aa": lambda x, y, p, i: _resized(i, "bicubic", antialias=True),
    "upsample_bilinear2d": lambda x, y, p, i: _resized(i, "bilinear", antialias=False),
    "upsample_bicubic2d": lambda x, y, p, i: _resized(i, "bicubic", antialias=False),
    "upsample_nearest2d": lambda x, y, p, i: _resized(i, "nearest", antialias=False),
    "avg_pool2d": lambda x, y, p, i: nn.functional.avg_pool2d(i.permute(2, 0, 1) / 255, 2),
    "max_pool2d": lambda x, y, p, i: nn.functional.max_pool2d(i.permute(2, 0, 1) / 255, 2),
}


def _resized(image: Tensor, mode: str, *, antialias: bool) -> Tensor:
    batch = image.permute(2, 0, 1)[None].float() / 255
    if mode == "nearest":
        return interpolate(batch, (7, 5), mode=mode)
    return interpolate(batch, (7, 5), mode=mode, align_corners=False, antialias=antialias)
