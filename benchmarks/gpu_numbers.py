"""Conversions, quotients and divisions of a GPU beside those of the interpreter: whether its instructions mean what the
interpreter of PTX takes them to mean.

Run: python benchmarks/gpu_numbers.py --target sm_90a        # seconds; a non-zero status says that something differs

The numbers are all of a small type, f32 of any bits, those around each limit, and every fraction of a divisor.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import numpy as np

from convsmith.codegen.artifact import Artifact, Entry
from convsmith.codegen.device_module import device_text
from convsmith.codegen.device_text import ThreadEmitter
from convsmith.compiler.arguments import buffer_argument
from convsmith.compiler.cubin import assemble_module
from convsmith.compiler.facts import facts
from convsmith.compiler.launch import launch_of
from convsmith.interp.arithmetic import cast
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.ir.types import DTYPES
from convsmith.machine.registry import target
from convsmith.runtime.cuda import device_name
from convsmith.runtime.host_block import HostBlock
from convsmith.runtime.loading import library_of

LANES, THREADS = 4, 128
CASTS = (
    ("f32", "f16"), ("f16", "f32"), ("f32", "bf16"), ("bf16", "f32"), ("f32", "f8_e4m3"), ("f32", "f8_e5m2"),
    ("f8_e4m3", "f32"), ("f8_e5m2", "f32"), ("f32", "s8"), ("f32", "u8"), ("f32", "s32"), ("s32", "s8"), ("s32", "u8"),
)  # fmt: skip
SCALES = (0.25, -0.7, 41.0, 1.9999999, 1e-38, 3e38, 2.0**-149, 0.0, np.inf, np.nan)
Arrays = dict[str, np.ndarray]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--count", type=int, default=1 << 23, help="f32 numbers of any bits")
    parser.add_argument("--ptx", action="store_true", help="let the driver assemble the code")
    options = parser.parse_args(words)
    print(f"{device_name()}, code for {options.target}")
    wrong = 0
    ThreadEmitter.may_call = False  # divisions as in kernels of groups of warps
    np.seterr(all="ignore")
    for name, text, arrays, wanted in cases(options.count):
        on_device(artifact_of(kernel_of(text, arrays), options.target, not options.ptx), arrays)
        found, bits = arrays["out"], f"u{arrays['out'].itemsize}"
        nan = found != found
        differs = (found.view(bits) != wanted.view(bits)) & ~(nan & (wanted != wanted))
        kinds = ", ".join(sorted({hex(x) for x in found[nan].view(bits).tolist()})[:4])
        count = f"{len(found):9,} numbers, {np.count_nonzero(differs):,} differ"
        print(f"{name:34} {count}{f', NaN is {kinds}' * bool(kinds)}")
        for n in np.flatnonzero(differs)[:3]:
            print("    ", {x: array[n % len(array)] for x, array in arrays.items()}, "not", wanted[n])
        wrong += bool(differs.any())
    return min(wrong, 1)


def cases(count: int) -> Iterator[tuple[str, str, Arrays, np.ndarray]]:
    """Yield the name of a case, the value in the IR's text, where ``@`` is the place of lanes, arrays and results."""
    rng = np.random.default_rng(0)
    for of, to in CASTS:
        a = numbers(of, count, rng)
        yield f"{of} to {to}", f"cast({to}, a@)", results({"a": a}, to), cast(a, DTYPES[to])
    for to in ("u8", "s8"):
        for scale in np.array(SCALES, np.float32):
            size = scale if np.isfinite(scale) and scale else np.float32(1)
            near = (rng.integers(-600, 600, count >> 4) / np.float32(2) * size).astype(np.float32)
            a = whole(np.concatenate([near, np.nextafter(near, np.float32(np.inf)), numbers("f32", count >> 4, rng)]))
            name, quotient = f"{to} of a quotient by {scale:.3g}", f"a@ / s[0]{{{LANES}:0}}"
            one = {"a": a, "s": np.array([scale]), "z": np.array([3], np.int32)}
            yield name, f"cast({to}, {quotient})", results(one, to), cast(a / scale, DTYPES[to])
            added = f"cast({to}, {quotient} + cast(f32, z[0]{{{LANES}:0}}))"
            yield f"{name} + 3", added, results(one, to), cast(a / scale + np.float32(3), DTYPES[to])
    fractions = whole(np.arange(1 << 23, 1 << 24, max((1 << 23) // count, 1)).astype(np.float32))
    for name, a in (("1", np.ones_like(fractions)), ("others", rng.permutation(fractions))):
        yield f"{name} by each fraction", "a@ / b@", results({"a": a, "b": fractions}, "f32"), a / fractions
    a, b = (numbers("f32", count, rng) for _ in range(2))
    yield "any f32 by any f32", "a@ / b@", results({"a": a, "b": b}, "f32"), a / b


def numbers(name: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return all numbers of a type of up to 16 bits, or some of any bits with those around the limits of smaller types.
    """
    t = np.dtype(DTYPES[name].numpy)
    if t.itemsize <= 2:
        return whole(np.arange(1 << 8 * t.itemsize, dtype=f"u{t.itemsize}").view(t))
    some = rng.integers(0, 1 << 32, count, np.uint32).view(t)
    ends = np.array([127.5, 128, 254.5, 255.5, 448, 464, 480, 57344, 61440, 65504, 65520, 2**31 - 1, 2**31], np.float64)
    ends = np.concatenate([ends, -ends])
    if t.kind == "i":
        return whole(np.concatenate([some, np.arange(-300, 300), ends.clip(-(2**31), 2**31 - 1)]).astype(t))
    tiny = 2.0 ** np.arange(-30, -12)
    near = np.concatenate([ends, tiny, 1.5 * tiny, np.arange(-300, 300) / 2]).astype(t)
    around = [np.nextafter(near, t.type(x)) for x in (-np.inf, np.inf)]
    return whole(np.concatenate([some, near, *around, np.array([0, -0.0, np.inf, -np.inf, np.nan], t)]))


def whole(x: np.ndarray) -> np.ndarray:
    """Return numbers for all lanes of all threads of the groups."""
    each = LANES * THREADS
    return np.resize(x, -(-len(x) // each) * each)


def results(arrays: Arrays, to: str) -> Arrays:
    return {**arrays, "out": np.zeros(len(arrays["a"]), DTYPES[to].numpy)}


def kernel_of(text: str, arrays: Arrays) -> Kernel:
    names = {row.numpy: row.name for row in DTYPES.values() if row.per_byte == 1}
    params = ", ".join(f"{name}: {names[x.dtype.name]}[{len(x)}]" for name, x in arrays.items())
    place = f"[g * {LANES * THREADS} + t * {LANES}]{{{LANES}}}"
    groups = len(arrays["out"]) // LANES // THREADS
    return parse_kernel(
        f"kernel k({params})\n  for g in 0 .. {groups} #grid:\n    for t in 0 .. {THREADS} #group:\n"
        f"      out{place} = {text.replace('@', place)}\n"
    )


def artifact_of(kernel: Kernel, level: str, is_assembled: bool) -> Artifact:
    machine = target(level)
    arguments = tuple(buffer_argument(b, "inout" if b in kernel.written else "in") for b in kernel.params)
    entry = Entry(kernel.name, arguments, launch_of(kernel, 1, machine))
    code, notes = assemble_module(device_text({kernel.name: kernel}, facts(machine)), machine)
    ptx = notes["ptx"]
    return Artifact(code if is_assembled else ptx.encode(), level, {"main": entry}, "k", "", notes=notes)


def on_device(artifact: Artifact, arrays: Arrays) -> None:
    """Run a kernel on arrays, in place."""
    function = library_of(artifact)["main"]
    block = HostBlock(function.entry, {name: x.ctypes.data for name, x in arrays.items()})
    function(block.address)


if __name__ == "__main__":
    sys.exit(main())
