"""The time that an ONNX model spends in each convolution, and the time that convsmith's kernels would save.

    pip install '.[onnx]'
    python examples/profile_onnx.py [model.onnx]
    python examples/profile_onnx.py --save block.onnx    # writes the block, and profiles nothing

Without a file, the model is an inverted residual block, made here. The same table is printed by
`convsmith bench model.onnx`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

import convsmith as cs


def block(channels: int = 24, wide: int = 144, size: int = 56) -> onnx.ModelProto:
    """Return pointwise, depthwise and pointwise convolutions of one block, with its residual sum."""
    rng = np.random.default_rng(0)
    shapes = {"expand_w": (wide, channels, 1, 1), "depth_w": (wide, 1, 3, 3), "project_w": (channels, wide, 1, 1)}
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) / 8).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "expand_w"], ["a"], "expand"),
        helper.make_node("Relu", ["a"], ["b"], "relu1"),
        helper.make_node("Conv", ["b", "depth_w"], ["c"], "depthwise", group=wide, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"], "relu2"),
        helper.make_node("Conv", ["d", "project_w"], ["e"], "project"),
        helper.make_node("Add", ["x", "e"], ["y"], "residual"),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", channels, size, size])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", channels, size, size])
    graph = helper.make_graph(nodes, "block", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    return model


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The convolutions of an ONNX model beside ONNX Runtime's kernels.")
    parser.add_argument("model", nargs="?", help="a model; by default a block that is made here")
    parser.add_argument("--threads", type=int, default=1, help="threads of both (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of samples (default: %(default)s)")
    parser.add_argument("--save", metavar="FILE", help="write the block to this file, and profile nothing")
    options = parser.parse_args(arguments)
    if options.save is not None:
        onnx.save(block(), options.save)
        return
    profile = cs.onnx.profile(options.model or block(), threads=options.threads, rounds=options.rounds)
    print(profile)
    for node in profile.worst(1):
        print(f"\nconvsmith explain shows why: its config is {node.config}")


if __name__ == "__main__":
    main()
