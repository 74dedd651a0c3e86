"""Models as arguments of the commands: the problems of their nodes, and the sizes of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import click

from convsmith.cli.problems import Listed, Options, read_problems, with_layout
from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.diag.forking import import_lock
from convsmith.onnx.models import node_constants, node_problems
from convsmith.problem.problem import Problem
from convsmith.runtime.array_file import read_array
from convsmith.runtime.arrays import Array

__all__ = [
    "ModelInputs", "input_option", "is_model", "model_constants", "models_or_problems", "node_options", "one_problem",
    "shapes_of",
]  # fmt: skip

ModelInputs: TypeAlias = Mapping[str, Array | tuple[int, ...]]
"""Inputs of a model by name: arrays, or shapes."""

_MAX_DIGITS = 18
"""Digits of the largest size of an input."""

F = TypeVar("F", bound=Callable[..., Any])


def _model_inputs(_context: object, _parameter: object, texts: Sequence[str]) -> dict[str, Array | tuple[int, ...]]:
    """Return the inputs that the ``texts`` of --input name: NAME=1x3x224x224 or NAME=FILE.npy."""
    return dict(map(_model_input, texts))


def _model_input(text: str) -> tuple[str, Array | tuple[int, ...]]:
    name, equals, value = text.rpartition("=")
    if not name or not equals or not value:
        raise UsageError(f"--input={text}: legal is NAME=SHAPE or NAME=FILE.npy, as in x=1x3x224x224", code="inputs")
    sizes = value.split("x")
    if all(size.isdecimal() and len(size) <= _MAX_DIGITS and int(size) for size in sizes):
        return name, tuple(map(int, sizes))
    try:
        return name, read_array(value)
    except (UsageError, ValueError) as error:
        message = f"--input={shown(text)}: no shape, and no file of numpy.save: {error}"
        raise UsageError(message, code="inputs") from None


def input_option(command: F) -> F:
    """Add --input, which may be repeated."""
    return click.option(
        "--input", "inputs", metavar="NAME=SHAPE|FILE.npy", multiple=True, callback=_model_inputs,
        help="Shape or values of an input of a model, such as x=1x3x224x224. May be repeated.",
    )(command)  # fmt: skip


def node_options(command: F) -> F:
    """Add --input, and --torch for the node of a PyTorch model."""
    text = "NODE is one of the PyTorch model that this function returns."
    return input_option(click.option("--torch", metavar="MODULE:FUNCTION", help=text)(command))


def is_model(source: str) -> bool:
    """Return whether ``source`` names a file of a model."""
    return source.endswith(".onnx")


def models_or_problems(source: str, options: Options, layout: str, inputs: ModelInputs, verb: str = "") -> Listed:
    """Return the problems that ``source`` names: for a model, the problems of its nodes, each with the name of its
    first node.

    ``inputs`` are the inputs of the model; the other arguments are as in `read_problems`.
    """
    if not is_model(source):
        if inputs:
            raise UsageError(f"--input is legal with a model only, and {source} is none", code="inputs")
        return read_problems(source, options, layout, verb)
    _refuse_options(source, options)
    found: dict[Problem, list[str]] = {}
    for name, problem in node_problems(source, shapes_of(inputs)).items():
        found.setdefault(problem, []).append(name)
    return _of_nodes(source, [(problem, tuple(names)) for problem, names in found.items()], layout)


def model_constants(source: str, layout: str, inputs: ModelInputs) -> tuple[Listed, list[dict[str, Array]]]:
    """Return the problems of all nodes of the model ``source``, and for each the arrays that the model holds for it."""
    if not is_model(source):
        raise UsageError(f"--built-in is legal with a model only, and {source} is none", code="bad-weights")
    found = node_constants(source, shapes_of(inputs))
    listed = _of_nodes(source, [(problem, (name,)) for name, (problem, _) in found.items()], layout)
    return listed, [arrays for _, arrays in found.values()]


def _of_nodes(source: str, found: Sequence[tuple[Problem, tuple[str, ...]]], layout: str) -> Listed:
    """Return problems with their nodes, each with the name of its first node."""
    if not found:
        raise UsageError(f"{source} contains no convolution", code="no-problem")
    problems = (replace(with_layout(p, layout), name=_without_quotes(first)) for p, (first, *_) in found)
    return Listed(tuple(problems), layout, False, tuple(names for _, names in found))


def one_problem(
    source: str | None, node: str | None, options: Options, layout: str, inputs: ModelInputs, torch: str | None,
    verb: str,
) -> Listed:  # fmt: skip
    """Return the problem that the arguments of the command ``verb`` name: a line, or the ``node`` of a model.

    With the function ``torch``, which returns a PyTorch model, ``source`` is the name of the node.
    """
    if torch is not None:
        if node is not None or inputs:
            raise UsageError(f"legal is {verb} --torch=MODULE:FUNCTION NODE, without --input", code="node")
        _refuse_options(torch, options)
        return _one_node(torch, _torch_problems(torch), layout, source)
    if source is None:
        raise UsageError(f"{verb} needs a descriptor, a file, or a model and the name of a node", code="no-problem")
    if is_model(source):
        _refuse_options(source, options)
        return _one_node(source, node_problems(source, shapes_of(inputs)), layout, node)
    if node is not None:
        raise UsageError(f"{verb} takes {node!r} with a model only, as in {verb} MODEL.onnx {node}", code="node")
    return models_or_problems(source, options, layout, inputs, verb)


def _torch_problems(source: str) -> Mapping[str, Problem]:
    with import_lock:
        from convsmith.torch.profiling import torch_profiler, with_function  # UnsupportedError without torch
    model, inputs = with_function(source)
    return torch_profiler(model, inputs, name=source, threads=1).node_problems


def _one_node(source: str, problems: Mapping[str, Problem], layout: str, node: str | None) -> Listed:
    if node is None or node not in problems:
        legal = choices(node, problems) or "none: it has no convolution"
        wrong = "the name of a node is missing" if node is None else f"it has no convolution {node!r}"
        raise UsageError(f"{source}: {wrong}; legal are {legal}", code="unknown-node")
    return Listed((with_layout(problems[node], layout),), layout, False)


def _refuse_options(source: str, options: Options) -> None:
    """Raise UsageError if ``options`` of problems are given, which a model sets itself."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise UsageError(f"{source} is a model, which sets its problems: legal is no {given[0]}", code="model")


def shapes_of(inputs: ModelInputs) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs."""
    return {name: x if isinstance(x, tuple) else x.shape for name, x in inputs.items()}


def _without_quotes(name: str) -> str:
    """Return the name of a node as a problem may have it."""
    return name.replace('"', "_")
