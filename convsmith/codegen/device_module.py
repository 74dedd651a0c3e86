"""Kernels of threads as a module of LLVM text, in the dialect of a device."""

from __future__ import annotations

from collections.abc import Mapping

from convsmith.codegen.artifact import AXES
from convsmith.codegen.device_text import KEPT_LOOP, ThreadEmitter
from convsmith.codegen.facts import Facts
from convsmith.codegen.geometry import is_pipelined
from convsmith.codegen.pipelines import PipelineEmitter
from convsmith.diag.errors import InternalError
from convsmith.ir.stmt import Kernel

__all__ = ["device_text"]


def device_text(kernels: Mapping[str, Kernel], facts: Facts) -> str:
    """Return a module with a kernel of each symbol."""
    dialect = facts.dialect
    if dialect is None:
        raise InternalError(f"{', '.join(kernels)}: the target has no dialect of kernels of threads")
    declared: dict[str, None] = {}
    parts: list[str] = []
    nodes = [f"!{n} = {text}" for n, text in enumerate(KEPT_LOOP)] if dialect.keeps_loops else []
    emitters: list[ThreadEmitter] = []
    for symbol, kernel in kernels.items():
        made = PipelineEmitter if is_pipelined(kernel) else ThreadEmitter
        e = made(kernel, facts, dialect, symbol)
        emitters.append(e)
        e.prepare(kernel.body)
        params = []
        for b in kernel.params:
            e.bases[b] = f"%{b.name}"
            params.append(f"{e.pointer(b)} noalias {'' if b in e.written else 'readonly '}{e.bases[b]}")
        for v in kernel.sizes:
            params.append(f"{facts.word} %{v}")
            e.vars[v] = f"%{v}" if facts.word == e.it else e.put(f"trunc {facts.word} %{v} to {e.it}")
        params += e.parameters()
        e.whole(kernel.body)
        declared.update(e.declared)
        sizes = dict(zip(AXES, e.geometry.group))
        attributes = [f'"{name}"="{text.format(**sizes)}"' for name, text in dialect.attributes]
        if e.geometry.cluster and dialect.pipelines is not None:
            sizes = dict(zip(AXES, e.geometry.cluster))
            attributes += [f'"{name}"="{text.format(**sizes)}"' for name, text in dialect.pipelines.cluster]
        noted = []
        for name, text in dialect.metadata:
            noted.append(f"!{name} !{len(nodes)}")
            nodes.append(f"!{len(nodes)} = {text.format(**sizes)}")
        about = " ".join(("#0", *attributes, *noted))
        head = f"define {dialect.convention} void @{symbol}({', '.join(params)}) {about} {{"
        parts += [*e.definitions, head, "entry:", *e.lines, "  ret void", "}", ""]
    texts = " ".join(f'"{k}"="{v}"' if v else k for k, v in facts.attributes.items())
    if dialect.dynamic and any(e.taken for e in emitters):
        space, most = dict(dialect.spaces)["shared"], max(e.alignment_of_shared for e in emitters)
        declared[f"{dialect.dynamic} = external addrspace({space}) global [0 x i8], align {most}"] = None
    first = (f'target triple = "{facts.triple}"', *declared, "")
    return "\n".join((*first, *parts, f"attributes #0 = {{ nounwind {texts} }}", *nodes, ""))
