"""`compile`: a PyTorch model as one native function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.network import Network
from convsmith.onnx.network import network_of
from convsmith.torch.networks import in_words
from convsmith.torch.optimization import checked_example
from convsmith.torch.program import graph_of_program

__all__ = ["compile"]


def compile(
    model: nn.Module | ExportedProgram, example_inputs: Tensor | Sequence[Any] | Mapping[str, Any] = (), *,
    example_kwargs: Mapping[str, Any] | None = None, threads: int | None = None,
) -> Network:  # fmt: skip
    """Return the function of `model` for inputs with the sizes and types of an example, as one native function.

    `example_inputs` is a tensor, or a tuple of the arguments; a mapping passes arguments by name, like
    `example_kwargs`. The model must be in eval mode; `torch.export` states it, or it is such a program already. The
    result takes the tensors among the arguments in order, or by their names, computes all of them without PyTorch, and
    can be saved and exported. `threads` defaults to CONVSMITH_THREADS, else to the CPUs of this process.

    UsageError for a model that does not run on the example; UnsupportedError for one that `torch.export` does not
    state, and for nodes that no kernel computes, which it names.
    """
    if isinstance(model, ExportedProgram):
        return network_of(graph_of_program(model, "program"), threads)
    args, kwargs = checked_example(model, example_inputs, example_kwargs)
    name = type(model).__name__
    try:
        with torch.no_grad():
            program = torch.export.export(model, args, kwargs, strict=False)
    except Exception as error:  # the model's own code
        try:
            with torch.no_grad():
                model(*args, **kwargs)
        except Exception as own:
            raise UsageError(f"the model does not run on example_inputs: {in_words(own)}", code="inputs") from own
        raise UnsupportedError(
            f"{name}: torch.export does not state it: {in_words(error)}; available is convsmith.torch.optimize, which "
            "runs parts", code="export",
        ) from error  # fmt: skip
    return network_of(graph_of_program(program, name), threads)
