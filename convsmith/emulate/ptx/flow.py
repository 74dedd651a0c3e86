"""The immediate post-dominator of each instruction of a kernel: the place where diverged lanes of a warp meet again."""

from __future__ import annotations

from convsmith.emulate.ptx.parser import PtxError, PtxKernel, Symbol


def successors(kernel: PtxKernel) -> list[tuple[int, ...]]:
    """Return the instructions that may follow each instruction; the end of the kernel is ``len(kernel.code)``."""
    end = len(kernel.code)
    followers: list[tuple[int, ...]] = []
    for n, ins in enumerate(kernel.code):
        if ins.words[0] == "bra":
            (target,) = ins.arguments
            if not isinstance(target, Symbol) or target.name not in kernel.labels:
                raise PtxError(f"{ins}: no label {target}")
            place = kernel.labels[target.name]
            followers.append((place, n + 1) if ins.guard else (place,))
        elif ins.words[0] in ("ret", "exit", "trap"):
            followers.append((end, n + 1) if ins.guard else (end,))
        else:
            followers.append((n + 1,))
    return followers


def meeting_points(kernel: PtxKernel) -> dict[int, int]:
    """Return the immediate post-dominator of each branch with a predicate, by the number of the instruction."""
    following = successors(kernel)
    end = len(kernel.code)
    after: list[int | None] = [None] * end + [end]  # immediate post-dominators found so far (Cooper, Harvey, Kennedy)
    order = _postorder(following, end)
    rank = {n: position for position, n in enumerate(order)}

    def common(a: int, b: int) -> int:
        while a != b:
            while rank[a] < rank[b]:
                a = after[a]  # type: ignore[assignment]
            while rank[b] < rank[a]:
                b = after[b]  # type: ignore[assignment]
        return a

    changed = True
    while changed:
        changed = False
        for n in reversed(order[:-1]):
            known = [s for s in following[n] if s in rank and after[s] is not None]
            if not known:
                continue
            meet = known[0]
            for s in known[1:]:
                meet = common(meet, s)
            if after[n] != meet:
                after[n], changed = meet, True
    return {n: after[n] if after[n] is not None else end  # type: ignore[misc]
            for n, ins in enumerate(kernel.code) if ins.words[0] == "bra" and ins.guard}  # fmt: skip


def _postorder(following: list[tuple[int, ...]], end: int) -> list[int]:
    """Return the instructions from which the end is reached, in postorder of the reversed graph; the end is last."""
    before: list[list[int]] = [[] for _ in range(end + 1)]
    for n, nexts in enumerate(following):
        for s in nexts:
            before[s].append(n)
    order: list[int] = []
    seen = {end}
    stack = [(end, iter(before[end]))]
    while stack:
        node, rest = stack[-1]
        for n in rest:
            if n not in seen:
                seen.add(n)
                stack.append((n, iter(before[n])))
                break
        else:
            order.append(node)
            stack.pop()
    return order
