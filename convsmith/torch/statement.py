"""`ProgramStatement`: a module as a graph of ATen's operators without effects, its inputs, and its constants.

One trace on tensors without data states a module; an operation that overwrites a value becomes one that computes a new
value. Programs of `torch.export` have the same form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import traceback

from convsmith.diag.errors import UnsupportedError
from convsmith.diag.printable import printable
from convsmith.diag.record import record
from convsmith.torch.recording import recorded
from convsmith.torch.without_writes import without_writes

__all__ = ["ProgramStatement", "statement_of", "statement_of_export"]

_IDENTITIES = ("alias", "detach")
_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
"""Operators that drop elements, if their third argument is true."""


@record(frozen=True, eq=False)
class ProgramStatement:
    """The `graph` of a program called `name`: the placeholders of its `inputs`, its `constants` by the names of their
    nodes, and the names that the module gives them, `parameters`. The module returns a tuple unless its result
    `is_single`.
    """

    name: str
    graph: fx.Graph
    inputs: tuple[fx.Node, ...]
    constants: Mapping[str, Tensor]
    parameters: Mapping[str, str]
    is_single: bool


class _Running(nn.Module):
    """A module that runs the nodes of a graph, so that nodes of a trace know them; or a module's own code."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, *inputs: Any) -> Any:
        """Return the result of the module."""
        if isinstance(self.part, fx.GraphModule):
            return fx.Interpreter(self.part).run(*inputs)
        return self.part(*inputs)


def statement_of(part: nn.Module, inputs: Sequence[Tensor], name: str) -> ProgramStatement:
    """Return the program of a module for inputs of the sizes and types of `inputs`, under the current autocast.

    Raises what the module's code raises on tensors without data; UnsupportedError for a program that changes its inputs
    or its parameters.
    """
    held = {n: x.detach() for n, x in (*part.named_parameters(), *part.named_buffers())}
    running, is_single = _Running(part), True

    def program(*tensors: Tensor) -> Any:
        nonlocal is_single
        own = dict(zip((f"part.{n}" for n in held), tensors))
        result = torch.func.functional_call(running, own, tensors[len(held) :])
        is_single = not isinstance(result, tuple | list)
        return result

    names = [*((n, n) for n in held), *((f"input_{n}", "an argument") for n in range(len(inputs)))]
    with traceback.preserve_node_meta():
        graph, others = recorded(program, names, [*held.values(), *inputs])
    placed = [node for node in graph.nodes if node.op == "placeholder"]
    constants = {**{node.name: x for node, x in zip(placed, held.values())}, **others}
    own = tuple(placed[len(held) :])
    parameters = {node.name: n for node, n in zip(placed, held)}
    without_writes(graph)
    _remove_identities(graph)
    graph.eliminate_dead_code()
    return ProgramStatement(name, graph, own, constants, parameters, is_single)


def _remove_identities(graph: fx.Graph) -> None:
    """Remove operators whose results are their first arguments, as dropout is outside of training."""
    for node in list(graph.nodes):
        name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
        if name in _IDENTITIES or (name in _DROPOUTS and len(node.args) > 2 and node.args[2] is False):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def statement_of_export(program: ExportedProgram, name: str) -> ProgramStatement:
    """Return the statement of an exported program. UnsupportedError for one that changes its inputs or parameters."""
    made = program.run_decompositions({})  # only makes every operator free of effects
    for spec in made.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise UnsupportedError(
                f"{name}: it changes {printable(str(spec.target))}; available are models without effects",
                code="effects",
            )
    placed = {node.name: node for node in made.graph.nodes if node.op == "placeholder"}
    inner = {**made.state_dict, **made.constants}
    inputs, constants, parameters = list[fx.Node](), dict[str, Tensor](), dict[str, str]()
    for given in made.graph_signature.input_specs:
        if given.kind is InputKind.USER_INPUT:
            inputs.append(placed[given.arg.name])
        else:
            constants[given.arg.name] = inner[str(given.target)].detach()
            parameters[given.arg.name] = str(given.target)
    of_result = made.call_spec.out_spec
    is_single = of_result is None or of_result.type not in (tuple, list)
    return ProgramStatement(name, made.graph, tuple(inputs), constants, parameters, is_single)
