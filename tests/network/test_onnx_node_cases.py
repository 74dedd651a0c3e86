"""The cases of nodes that the package `onnx` has for all who run models: what is computed has the expected values.

A case that is not available raises an error of the package. The cases state parameters, such as axes, as inputs; where
kernels need constants, all inputs but one are constants of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.onnx.graph_operators import GRAPH_OPERATORS

onnx: Any = pytest.importorskip("onnx")

_COMPOSED = (
    "LRN", "LpNormalization", "Mean", "HardSwish", "Selu", "Celu", "Swish", "Attention", "Size", "Tan", "Asin", "Acos",
    "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Hardmax", "GlobalLpPool",
)  # fmt: skip
"""Operators that others express."""
_OTHERWISE = (
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
)
"""Cases that expect corners between elements. As in ONNX Runtime, corners are elements here."""
_IN_F64 = ("ReduceLogSumExp",)
"""Operators whose cases are all in f64, in which kernels compute no exponentials."""
_ACCURACY = {"float16": (1e-2, 1e-2), "bfloat16": (2e-2, 1e-2)}
"""Relative and absolute errors of results in types of 16 bits."""


def _cases(operator: str) -> list[Any]:
    """Return ONNX's cases whose only node is of an operator. A module of cases computes them as it is imported: only
    those are that name the operator.
    """
    from onnx.backend.test.case import node

    for path in sorted(Path(node.__file__).parent.glob("*.py")):
        if path.name != "__init__.py" and f'"{operator}"' in path.read_text(encoding="utf-8"):
            with np.errstate(all="ignore"):  # ONNX computes infinite results as it makes its cases
                import_module(f"{node.__name__}.{path.stem}")
    alone = [case for case in node._NodeTestCases if len(case.model.graph.node) == 1]
    return [c for c in alone if c.model.graph.node[0].op_type == operator and not c.name.endswith("_expanded")]


def _array(x: Any) -> Any:
    return onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else np.asarray(x)


def _models(model: Any, arrays: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the model, and models in which all inputs but the first, or the last, are constants."""
    yield model, arrays
    names = list(arrays)
    for kept in dict.fromkeys((names[0], names[-1])) if len(names) > 1 else ():
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        del changed.graph.input[:]
        for x in model.graph.input:
            if x.name == kept:
                changed.graph.input.append(x)
            else:
                changed.graph.initializer.append(onnx.numpy_helper.from_array(arrays[x.name], x.name))
        yield changed, {kept: arrays[kept]}


def _results(case: Any, arrays: dict[str, Any]) -> list[Any] | None:
    """Return the results of a case; None if it is not available."""
    for model, given in _models(case.model, arrays):
        try:
            net = cs.onnx.compile(model, threads=1)
        except cs.ConvsmithError:
            continue
        return list(net.run(given).values())
    return None


@pytest.mark.sampled(37)
@pytest.mark.parametrize("operator", sorted({*GRAPH_OPERATORS, *_COMPOSED}))
def test_cases_of_an_operator_have_the_expected_values(operator: str) -> None:
    computed, cases = 0, _cases(operator)
    for case in cases:
        values, expected = case.data_sets[0]
        inputs = [x for x in case.model.graph.input if x.type.HasField("tensor_type")]
        arrays = {x.name: _array(y) for x, y in zip(inputs, values)}
        if case.name in _OTHERWISE or len(inputs) != len(values) or not all(x.size for x in arrays.values()):
            continue
        results = _results(case, arrays)
        if results is None:
            continue
        computed += 1
        for found, wanted in zip(results, map(_array, expected), strict=True):
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), case.name
            if wanted.dtype.kind in "iub":
                np.testing.assert_array_equal(found, wanted, err_msg=case.name)
            else:
                rtol, atol = _ACCURACY.get(str(wanted.dtype), (1e-3, 1e-5))
                wide = (x.astype(np.float64) for x in (found, wanted))
                np.testing.assert_allclose(*wide, rtol=rtol, atol=atol, err_msg=case.name)
    assert computed or operator in _IN_F64 or not cases
