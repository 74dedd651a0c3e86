"""Modules as LLVM text: the functions of each kernel, the function that runs a part of its tasks, and its entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from convsmith.codegen.aligned_places import AlignedPlaces
from convsmith.codegen.artifact import Launch
from convsmith.codegen.denormals import flushed_buffers
from convsmith.codegen.facts import Facts
from convsmith.codegen.fragments import Configurations
from convsmith.codegen.launch import entry_text
from convsmith.codegen.llvm_text import FunctionEmitter
from convsmith.codegen.past_caches import METADATA, STORE, dispatch_text, streamed_results
from convsmith.codegen.written_buffers import written_buffers
from convsmith.ir.buffer import Buffer
from convsmith.ir.stmt import Alloc, Block, Call, For, Function, Kernel, Let, Stmt
from convsmith.ir.walk import statements_of


def function_text(f: Function, kernel: Kernel, facts: Facts, symbol: str, flushed: frozenset[Buffer],
                  configurations: Configurations | None, declared: dict[str, None]) -> str:  # fmt: skip
    """Return an outlined function; it is not inlined, so that equal tiles share it and LLVM compiles it separately."""
    written = written_buffers(f.body, kernel.functions)
    e = FunctionEmitter(kernel, facts, symbol, written, flushed, configurations)
    e.configured = configurations is not None and bool(configurations.left_to_callers[f.name])
    e.prepare(f.body)
    params = []
    for var, buffer in f.pointers:
        e.pointers[var] = f"%{var}"
        params.append(f"ptr {'' if buffer in written else 'readonly '}%{var}")
    for var in f.indices:
        e.vars[var] = f"%{var}"
        params.append(f"{e.it} %{var}")
    mark = facts.debug.define(f.name) if facts.debug is not None else ""
    e.stmt(f.body)
    declared.update(e.declared)
    own = _quoted(facts.called_attributes)
    head = f"define internal void @{symbol}_{f.name}({', '.join(params)}) noinline #0{own}{mark}"
    return "\n".join((head + " {", "entry:", *e.lines, "  ret void", "}", ""))


def chunk_text(kernel: Kernel, facts: Facts, symbol: str, scratch: Mapping[Buffer, tuple[int, int]],
               is_split: bool, flushed: frozenset[Buffer], configurations: Configurations | None,
               declared: dict[str, None]) -> str:  # fmt: skip
    """Return the function that runs part ``tid`` of ``n`` of the kernel's tasks, or all of them unless ``is_split``.

    ``scratch`` maps each thread-private buffer to its offset in the scratch argument and that argument's bytes per
    thread. The scratch argument follows the kernel's own arguments and precedes its sizes, of a word each.
    """
    e = FunctionEmitter(kernel, facts, symbol, written_buffers(kernel.body, kernel.functions), flushed, configurations)
    e.prepare(kernel.body)
    e.is_split = is_split
    word, aligned = facts.word, f"align {facts.address_bits // 8}"
    for n, b in enumerate(kernel.params):
        place = e.put(f"getelementptr {word}, ptr %args, i64 {n}")
        e.bases[b] = e.put(f"load ptr, ptr {place}, {aligned}")
    if scratch:
        place = e.put(f"getelementptr {word}, ptr %args, i64 {len(kernel.params)}")
        memory = e.put(f"load ptr, ptr {place}, {aligned}")
        for b, (offset, size) in scratch.items():
            at = f"{offset}"
            if is_split:
                own = e.put(f"mul {word} %tid, {size}")
                at = e.put(f"add {word} {own}, {offset}")
            e.bases[b] = e.put(f"getelementptr i8, ptr {memory}, {word} {at}")
    for n, v in enumerate(kernel.sizes):
        place = e.put(f"getelementptr {word}, ptr %args, i64 {len(kernel.params) + bool(scratch) + n}")
        e.vars[v] = e.put(f"load {e.it}, ptr {place}, {aligned}")
    mark = facts.debug.define(kernel.name) if facts.debug is not None else ""
    if is_split:
        for s in kernel.body.stmts if isinstance(kernel.body, Block) else (kernel.body,):
            _share(e, s)
    else:
        e.stmt(kernel.body)
    if e.past_caches:
        e.declared[f"declare void @{facts.fence}()"] = None
        e.lines.append(f"  call void @{facts.fence}()")
    declared.update(e.declared)
    body = "\n".join(e.lines)
    plain = " noinline optnone" if _only_calls(kernel.body) else ""
    own = _quoted(facts.part_attributes)
    head = f"define void @{symbol}_chunk(ptr %args, {word} %tid, {word} %n){plain} #0{own}{mark}"
    return f"{head} {{\nentry:\n{body}\n  ret void\n}}\n"


def _only_calls(body: Stmt) -> bool:
    """Return whether all statements below the loops of ``body`` call functions; optimising them gains nothing."""
    return all(isinstance(s, Alloc | Block | Call | For | Let) for s in statements_of(body))


def _quoted(attributes: tuple[str, ...]) -> str:
    """Return the attributes of a function that follow its attribute group."""
    return "".join(f' "{name}"' for name in attributes)


def _share(e: FunctionEmitter, s: Stmt) -> None:
    """Emit this thread's part of a statement: a range of a parallel loop's tasks; any other statement runs on the first
    thread.
    """
    if isinstance(s, Let):
        e.vars[s.var] = e.index(s.value)
        e.known.push()
        for inner in s.body.stmts if isinstance(s.body, Block) else (s.body,):
            _share(e, inner)
        e.known.pop()
        return
    if isinstance(s, For) and s.kind == "parallel":
        ends, total = [], e.index(s.hi)
        if s.hi.terms and e.bits < 64:
            total = e.put(f"sext {e.it} {total} to i64")
        tid, parts = "%tid", "%n"
        if e.facts.address_bits < 64:
            tid, parts = (e.put(f"zext {e.facts.word} {x} to i64") for x in (tid, parts))
        for who in (tid, e.put(f"add i64 {tid}, 1")):
            scaled = e.put(f"mul i64 {who}, {total}")
            end = e.put(f"udiv i64 {scaled}, {parts}")
            ends.append(end if e.bits == 64 else e.put(f"trunc i64 {end} to {e.it}"))
        e.task_range = (ends[0], ends[1])
        e.stmt(s)
        return
    work, done = e.label("work"), e.label("done")
    first = e.put(f"icmp eq {e.facts.word} %tid, 0")
    e.lines.append(f"  br i1 {first}, label %{work}, label %{done}")
    e.start(work)
    e.known.push()
    e.stmt(s)
    e.known.pop()
    e.lines.append(f"  br label %{done}")
    e.start(done)


def module_text(
    kernels: Mapping[str, tuple[Kernel, Launch]], facts: Facts, scratch: Mapping[Buffer, tuple[int, int]]
) -> str:
    """Return a module with an entry for each symbol, given its kernel and its launch."""
    declared: dict[str, None] = {}
    parts = []
    for symbol, (kernel, launch) in kernels.items():
        parts += kernel_text(kernel, facts, symbol, scratch, launch.kind != "call", declared)
        parts.append(entry_text(symbol, launch, facts.word, declared))
    texts = " ".join(f'"{k}"="{v}"' if v else k for k, v in facts.attributes.items())
    head = f'target triple = "{facts.triple}"\n' + "\n".join(declared) + "\n"
    marks = METADATA if any(STORE in part for part in parts) else ""
    marks += facts.debug.text() if facts.debug is not None else ""
    return head + "\n".join(parts) + f"\nattributes #0 = {{ nounwind {texts} }}\n{marks}"


def kernel_text(
    kernel: Kernel, facts: Facts, symbol: str, scratch: Mapping[Buffer, tuple[int, int]], is_split: bool,
    declared: dict[str, None],
) -> list[str]:  # fmt: skip
    """Return the functions of a kernel. The last one runs a part of its tasks if they are split, or all of them.

    Non-temporal stores need aligned vectors. A kernel that has them also has a form for unaligned results.
    """
    results = streamed_results(kernel)
    if results:
        others = {name: ahead for name, ahead in kernel.streamed.items() if name not in {b.name for b in results}}
        plain = replace(kernel, streamed=others)
        forms = {f"{symbol}_aligned": kernel, f"{symbol}_unaligned": plain}
        given = (scratch, is_split, declared)
        texts = [text for name, form in forms.items() for text in form_text(form, facts, name, *given)]
        return [*texts, dispatch_text(kernel, results, symbol, facts.word)]
    return form_text(kernel, facts, symbol, scratch, is_split, declared)


def form_text(
    kernel: Kernel, facts: Facts, symbol: str, scratch: Mapping[Buffer, tuple[int, int]], is_split: bool,
    declared: dict[str, None],
) -> list[str]:  # fmt: skip
    """Return the outlined functions of a kernel, and the function that runs a part of its tasks, or all of them."""
    if facts.alignment:
        own = (*scratch, *(b for b in kernel.params if b.name in facts.own))
        facts = replace(facts, places=AlignedPlaces(kernel, own, facts.alignment))
    configurations = Configurations.of(kernel, facts.rows, facts.fragments)
    flushed = flushed_buffers(kernel, facts.rows)
    given = (flushed, configurations, declared)
    functions = [function_text(f, kernel, facts, symbol, *given) for f in kernel.functions]
    return [*functions, chunk_text(kernel, facts, symbol, scratch, is_split, *given)]
