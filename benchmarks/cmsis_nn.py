"""Networks of `tiny_networks.py` as programs in C that call CMSIS-NN, with random weights.

A program runs the network RUNS times, so that the difference of two counts is one run. What a library prepares once
(sums of the weights of dense layers) is not part of a run.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tiny_networks import Layer, TinyNetwork, layers_of

__all__ = ["memory_of", "program_of", "weights_of"]

_HEAD = """#include "arm_nnfunctions.h"
#include "arm_nnsupportfunctions.h"
#include <stdio.h>
static int8_t scratch[SCRATCH] __attribute__((aligned(16)));
"""


def program_of(network: TinyNetwork, scratch: int) -> str:
    """Return the program with ``scratch`` bytes for the functions, which prints how many of them a function needs.

    Its status is not 0 if a function refuses its arguments.
    """
    layers = layers_of(network)
    h, w, c = network.size
    lines = [f"#define SCRATCH {scratch}", _HEAD, f"static int8_t x[{h * w * c}];"]
    lines += [f"static int8_t y{n}[{int(np.prod(layer.shape))}];" for n, layer in enumerate(layers)]
    body, once = [], []
    for n, layer in enumerate(layers):
        size = network.size if layer.source < 0 else layers[layer.source].shape
        lines += _constants(n, layer, size)
        once += _prepared(n, layer, size)
        body += _call(n, layer, size, network.size[:2] != (1, 1))
    status = ["static int most;", "int main(void) {", "  int wrong = 0;", *once]
    runs = ["  for (int run = 0; run < RUNS; run++) {", *body, "  }"]
    runs += ['  printf("%d\\n", most);', "  return most > SCRATCH ? 2 : wrong;", "}"]
    return "\n".join([*lines, *status, *runs, ""])


def weights_of(network: TinyNetwork) -> int:
    """Return the bytes of the constants of the program: weights, biases, multipliers and shifts."""
    total, layers = 0, layers_of(network)
    for layer in layers:
        c = (network.size if layer.source < 0 else layers[layer.source].shape)[2]
        total += _weights(layer, c) + (4 if layer.kind == "dense" else 12) * layer.shape[2] * (_weights(layer, c) > 0)
    return total


def memory_of(network: TinyNetwork) -> int:
    """Return the most bytes of values that a layer reads and writes."""
    layers = layers_of(network)
    sizes = {-1: network.size} | {n: layer.shape for n, layer in enumerate(layers)}
    read = ([layer.source, *[layer.addend] * (layer.kind == "add"), n] for n, layer in enumerate(layers))
    return max(sum(int(np.prod(sizes[x])) for x in names) for names in read)


def _weights(layer: Layer, channels: int) -> int:
    taps = layer.kernel[0] * layer.kernel[1]
    dense = channels * layer.channels
    by_kind = {"conv": taps * channels * layer.shape[2], "depthwise": taps * channels, "dense": dense}
    return by_kind.get(layer.kind, 0)


def _constants(n: int, layer: Layer, size: tuple[int, int, int]) -> Iterator[str]:
    count, outputs = _weights(layer, size[2]), layer.shape[2]
    if not count:
        return
    rng = np.random.default_rng(n)
    yield f"static const int8_t w{n}[] = {{{', '.join(map(str, rng.integers(-127, 128, count)))}}};"
    yield f"static const int32_t b{n}[{outputs}] = {{{', '.join(map(str, rng.integers(-999, 1000, outputs)))}}};"
    if layer.kind != "dense":
        yield f"static const int32_t m{n}[{outputs}] = {{{', '.join([str(1 << 30)] * outputs)}}};"
        yield f"static const int32_t s{n}[{outputs}] = {{{', '.join(['-8'] * outputs)}}};"


def _prepared(n: int, layer: Layer, size: tuple[int, int, int]) -> Iterator[str]:
    if layer.kind == "dense":
        yield f"  static int32_t sums{n}[{layer.channels}];"
        yield f"  arm_vector_sum_s8(sums{n}, {size[2]}, {layer.channels}, w{n}, 128, 0, b{n});"


def _call(n: int, layer: Layer, size: tuple[int, int, int], has_images: bool) -> Iterator[str]:
    """Yield the call of a layer's function; a value after a relu has the zero point -128."""
    (h, w, c), (oh, ow, oc) = size, layer.shape
    source = "x" if layer.source < 0 else f"y{layer.source}"
    top, left, _, _ = layer.pads(size)
    dims = f"{{1, {h}, {w}, {c}}}", f"{{1, {oh}, {ow}, {oc}}}"
    given = f"cmsis_nn_dims in = {dims[0]}, out = {dims[1]}, bias = {{1, 1, 1, {oc}}};"
    strides, pads = f"{{{layer.stride[1]}, {layer.stride[0]}}}", f"{{{left}, {top}}}"
    context = "cmsis_nn_context context = {scratch, SCRATCH}; if (need > most) most = need;"
    if layer.kind in ("conv", "depthwise"):
        name = "arm_depthwise_conv_wrapper_s8" if layer.kind == "depthwise" else "arm_convolve_wrapper_s8"
        kind, many = ("dw", "1, ") if layer.kind == "depthwise" else ("", "")
        kind = f"{kind}_conv" if kind else "conv"
        parameters = f"{{128, -128, {many}{strides}, {pads}, {{1, 1}}, {{-128, 127}}}}"
        taps = f"{layer.kernel[0]}, {layer.kernel[1]}"
        filters = f"{{1, {taps}, {c}}}" if layer.kind == "depthwise" else f"{{{oc}, {taps}, {c}}}"
        yield f"    {{ {given} cmsis_nn_dims filter = {filters}; cmsis_nn_{kind}_params p = {parameters};"
        yield f"      cmsis_nn_per_channel_quant_params q = {{(int32_t *)m{n}, (int32_t *)s{n}}};"
        yield f"      int need = {name}_get_buffer_size(&p, &in, &filter, &out); {context}"
        yield f"      wrong |= {name}(&context, &p, &q, &in, {source}, &filter, w{n}, &bias, b{n}, &out, y{n}); }}"
    elif layer.kind == "add":
        other = f"y{layer.addend}"
        numbers = "128, 1 << 30, 0, 128, 1 << 30, 0, 20"
        yield f"    wrong |= arm_elementwise_add_s8({source}, {other}, {numbers}, y{n}, -128, 1 << 30, -19, -128, 127, "
        yield f"      {oh * ow * oc});"
    elif layer.kind == "mean":
        yield f"    {{ {given} cmsis_nn_dims filter = {{1, {h}, {w}, 1}};"
        yield f"      cmsis_nn_pool_params p = {{{{{w}, {h}}}, {{0, 0}}, {{-128, 127}}}};"
        yield f"      int need = arm_avgpool_s8_get_buffer_size({ow}, {c}); {context} (void)bias;"
        yield f"      wrong |= arm_avgpool_s8(&context, &p, &in, {source}, &filter, &out, y{n}); }}"
    else:
        yield f"    {{ {given} cmsis_nn_dims filter = {{{c}, 1, 1, {oc}}}; in.c = {c};"
        yield "      cmsis_nn_fc_params p = {128, 0, -128, {-128, 127}};"
        yield "      cmsis_nn_per_tensor_quant_params q = {1 << 30, -8};"
        yield f"      int need = arm_fully_connected_s8_get_buffer_size(&filter); {context} context.buf = sums{n};"
        yield f"      wrong |= arm_fully_connected_s8(&context, &p, &q, &in, {source}, &filter, w{n}, &bias, b{n},"
        yield f"        &out, y{n}); }}"
