"""Build the page in this folder: train a network on drawn shapes, and compile it to WebAssembly.

    python examples/web/build.py -o /tmp/page --npm FOLDER   # FOLDER has onnxruntime-web in node_modules
    python -m http.server --directory /tmp/page

The network is trained in seconds on shapes that the script draws; it needs PyTorch. Without --npm the page classifies
with convsmith alone.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from convsmith.onnx.graph import read_graph
from convsmith.onnx.network import export_for

SIZE = 32
CHANNELS = (16, 32, 64)
DRAWINGS = 3000
"""Drawings to train on."""
PAGE = ("index.html", "page.js")


def circle(rng: np.random.Generator) -> np.ndarray:
    angle = np.linspace(0, 2 * np.pi, 60) + rng.uniform(0, 2 * np.pi)
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def polygon(corners: int) -> Callable[[np.random.Generator], np.ndarray]:
    def drawn(rng: np.random.Generator) -> np.ndarray:
        angle = np.arange(corners + 1) * 2 * np.pi / corners + np.pi / corners + np.pi / 2
        points = np.stack([np.cos(angle), np.sin(angle)], 1)
        points[:-1] += rng.normal(0, 0.08, (corners, 2))
        points[-1] = points[0]
        return dense(points)

    return drawn


def cross(rng: np.random.Generator) -> np.ndarray:
    bars = [dense(np.array([[-1, -1], [1, 1]])), dense(np.array([[-1, 1], [1, -1]]))]
    return np.concatenate([bars[0], [[np.nan, np.nan]], bars[1]])


def line(rng: np.random.Generator) -> np.ndarray:
    return dense(np.array([[-1.0, 0], [1, 0]]))


def wave(rng: np.random.Generator) -> np.ndarray:
    x = np.linspace(-1, 1, 60)
    return np.stack([x, rng.uniform(0.25, 0.5) * np.sin(x * rng.uniform(5, 9) + rng.uniform(0, 6))], 1)


SHAPES = (circle, polygon(4), polygon(3), cross, line, wave)
"""The classes in the order of the page."""


def dense(corners: np.ndarray) -> np.ndarray:
    """Return points along a polyline."""
    parts = [np.linspace(a, b, 24) for a, b in pairwise(corners)]
    return np.concatenate(parts)


def image(points: np.ndarray, width: float) -> np.ndarray:
    """Return a drawing of points, which lie within -1 and 1, as ink from 0 to 1."""
    kept = points[~np.isnan(points[:, 0])]
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    at = (kept * 0.5 + 0.5) * (SIZE - 1)
    near = np.min((x[..., None] - at[:, 0]) ** 2 + (y[..., None] - at[:, 1]) ** 2, -1)
    return np.clip(width - np.sqrt(near) + 0.5, 0, 1).astype(np.float32)


def sample(rng: np.random.Generator, kind: int) -> np.ndarray:
    """Return a drawing of a shape, turned, stretched and moved, by a hand that trembles."""
    points = SHAPES[kind](rng)
    angle = rng.normal(0, 0.25) if kind != 4 else rng.uniform(0, np.pi)
    turned = points @ np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    scale = rng.uniform(0.35, 0.8) * np.array([1, rng.uniform(0.75, 1.3)])
    trembling = np.cumsum(rng.normal(0, 0.006, points.shape), 0)
    return image(np.clip(turned * scale + rng.uniform(-0.18, 0.18, 2) + trembling, -0.97, 0.97), rng.uniform(0.7, 1.4))


def trained(steps: int, drawings: int = DRAWINGS, seed: int = 0) -> nn.Sequential:
    """Return a network that tells the shapes apart, and print the part of new drawings that it classifies right."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    layers: list[nn.Module] = []
    for before, after in zip((1, *CHANNELS), CHANNELS):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3, 2, 1), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Conv2d(CHANNELS[-1], len(SHAPES), SIZE >> len(CHANNELS)), nn.Flatten())
    optimiser = torch.optim.Adam(net.parameters(), 2e-3)

    def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        kinds = rng.integers(0, len(SHAPES), count)
        return torch.tensor(np.stack([sample(rng, int(k)) for k in kinds])[:, None]), torch.tensor(kinds)

    held, classes = batch(drawings)
    for _ in range(steps):
        chosen = torch.randint(drawings, (32,))
        loss = nn.functional.cross_entropy(net(held[chosen]), classes[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    x, kinds = batch(200)
    with torch.no_grad():
        right = (net(x).argmax(1) == kinds).float().mean().item()
    print(f"{100 * right:.0f} % of 200 new drawings are classified right")
    return net


def model_of(net: nn.Sequential) -> onnx.ModelProto:
    """Return a network as a model of ONNX."""
    nodes, constants, value = [], [], "x"
    for n, layer in enumerate(net):
        made = f"v{n}"
        if isinstance(layer, nn.Conv2d):
            for name, array in (("w", layer.weight), ("b", layer.bias)):
                constants.append(numpy_helper.from_array(array.detach().numpy(), f"{name}{n}"))
            pads = [*map(int, layer.padding)] * 2
            names = [value, f"w{n}", f"b{n}"]
            nodes.append(helper.make_node("Conv", names, [made], strides=list(layer.stride), pads=pads))
        else:
            nodes.append(helper.make_node("Relu" if isinstance(layer, nn.ReLU) else "Flatten", [value], [made]))
        value = made
    shapes = (("x", [1, 1, SIZE, SIZE]), (value, [1, len(SHAPES)]))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes]
    graph = helper.make_graph(nodes, "shapes", values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Build a page that classifies drawings with two engines.")
    parser.add_argument("-o", "--output", required=True, help="folder of the page, which is made")
    parser.add_argument("--npm", help="folder whose node_modules has onnxruntime-web")
    parser.add_argument("--steps", type=int, default=400, help="steps of training (default: 400)")
    parser.add_argument("--drawings", type=int, default=DRAWINGS, help=f"drawings to train on (default: {DRAWINGS})")
    given = parser.parse_args(arguments)
    folder = Path(given.output)
    folder.mkdir(parents=True, exist_ok=True)
    model = model_of(trained(given.steps, given.drawings))
    onnx.save(model, folder / "shapes.onnx")
    export_for(read_graph(model.SerializeToString()), folder / "net", "shapes", "wasm32+relaxed")
    for name in PAGE:
        shutil.copy(Path(__file__).parent / name, folder)
    if given.npm is not None:
        held = Path(given.npm) / "node_modules" / "onnxruntime-web" / "dist"
        (folder / "onnxruntime-web").mkdir(exist_ok=True)
        for name in ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"):
            shutil.copy(held / name, folder / "onnxruntime-web")
    print(f"python -m http.server --directory {folder}")


if __name__ == "__main__":
    main()
