"""Counts instructions of networks of MLPerf Tiny's shapes on Arm's processors for microcontrollers, in qemu, and states
the bytes of code, constants and memory, beside CMSIS-NN. Nothing is timed.

Run: python benchmarks/microcontrollers.py [--networks kws,vww,ic,ad] [--levels armv8.1m+mve,armv7em] [--cmsis DIR]

On PATH must be arm-none-eabi-gcc with newlib, qemu-system-arm, and qemu-arm of version 8 or later. DIR is a checkout of
CMSIS-NN, with the folders Include and Source; it is compiled by the same compiler with -O3.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cmsis_nn
import numpy as np
import onnx
from report import Report
from tiny_networks import NETWORKS, TinyNetwork, layers_of, model_of

from convsmith.onnx.graph import read_graph
from convsmith.onnx.network import export_for, network_of

CPUS = {"armv8.1m+mve": "cortex-m55", "armv7em": "cortex-m4"}
"""Processors by the levels that kernels are compiled for."""
_SCRATCH = 60_000
"""Bytes that CMSIS-NN's functions may take beside the values."""
_LINKED = ("--specs=rdimon.specs", "-Wl,--gc-sections", "-Wl,-Ttext=0x10000")
_OTHERS = re.compile(r"f16|f32|_s4|lstm|svdf|_s16\.c$", re.IGNORECASE)
"""Sources of CMSIS-NN for other types than bytes."""
_SHARED = re.compile(r"NNSupportFunctions/\w+s16\.c$|s8_s16\.c$")
"""Sources among them that functions on bytes call."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Count instructions of networks on microcontrollers.")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--levels", default=",".join(CPUS))
    parser.add_argument("--cmsis", metavar="DIR")
    options = parser.parse_args(arguments)
    report = Report("microcontrollers", "Networks on microcontrollers", on="cortex-m")
    report.note(
        "Instructions of one call, counted in qemu, which has no pipeline and no caches: no kernel ran on a "
        "microcontroller. Networks have random weights and the shapes of MLPerf Tiny. Outputs are equal to those of "
        "the same model on this machine, and within 1 of ONNX Runtime's. Ratios above 1 are in our favour. Constants "
        "are packed weights, biases and scales; CMSIS-NN's are weights, biases, multipliers and shifts, and its memory "
        "is the most that the source, the result and the buffer of a layer take."
    )
    rows, found = [], []
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        libraries = {level: _library(Path(options.cmsis), CPUS[level], folder) for level in options.levels.split(",")
                     if options.cmsis}  # fmt: skip
        for name in options.networks.split(","):
            network = NETWORKS[name]
            onnx.save(model_of(network), str(folder / f"{name}.onnx"))
            for level in options.levels.split(","):
                ours = _ours(folder, name, level)
                theirs = {}
                if libraries:
                    theirs = _theirs(folder, network, CPUS[level], libraries[level], Path(options.cmsis))
                found.append({"network": network.name, "level": level, "ours": ours, "cmsis_nn": theirs})
                rows.append(_row(network, level, ours, theirs))
                print(rows[-1], flush=True)
    report.data = {"rows": found}
    columns = ["network", "processor", "multiply-adds", "instructions", "CMSIS-NN", "ratio", "code", "constants",
               "flash of CMSIS-NN", "ratio", "memory", "CMSIS-NN"]  # fmt: skip
    report.table("A call", columns, rows)
    report.write()


def _row(network: TinyNetwork, level: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    flash = ours["code"] + ours["weights"]
    cells = [network.name, CPUS[level], f"{_products(network):,}", f"{ours['instructions']:,}"]
    if not theirs:
        return [*cells, "-", "-", f"{ours['code']:,}", f"{ours['weights']:,}", "-", "-", f"{ours['memory']:,}", "-"]
    other = theirs["code"] + theirs["weights"]
    return [
        *cells, f"{theirs['instructions']:,}", f"{theirs['instructions'] / ours['instructions']:.2f}",
        f"{ours['code']:,}", f"{ours['weights']:,}", f"{theirs['code']:,} + {theirs['weights']:,}",
        f"{other / flash:.2f}", f"{ours['memory']:,}", f"{theirs['memory']:,}",
    ]  # fmt: skip


def _products(network: TinyNetwork) -> int:
    """Return the multiply-adds of a network, those with padding included."""
    total, layers = 0, layers_of(network)
    for layer in layers:
        c = (network.size if layer.source < 0 else layers[layer.source].shape)[2]
        terms = {"conv": c, "depthwise": 1, "dense": c}.get(layer.kind, 0)
        total += int(np.prod(layer.shape)) * terms * int(np.prod(layer.kernel))
    return total


def _ours(folder: Path, name: str, level: str) -> dict[str, Any]:
    """Return the counts of our library, whose outputs are checked."""
    import onnxruntime

    cpu, path = CPUS[level], folder / f"{name}.onnx"
    graph = read_graph(str(path), {})
    made = export_for(graph, folder / f"{name}-{cpu}", name, level, 1)
    (x,) = graph.inputs
    given = np.random.default_rng(5).integers(0, 256, x.shape).astype(np.uint8)
    ((output, right),) = network_of(graph, 1).run({x.name: given}).items()
    (theirs,) = onnxruntime.InferenceSession(str(path)).run([output], {x.name: given})
    assert np.abs(right.astype(int) - theirs).max() <= 1
    (made.directory / "main.c").write_text(f"""#include "{name}.h"
#include <stdint.h>
#include <stdio.h>
static const uint8_t x[] = {{{', '.join(map(str, given.ravel()))}}};
static uint8_t y[{right.size}];
static char workspace[{made.workspace}] __attribute__((aligned(128)));
int main(void) {{
    int code = {name}(x, y, workspace);
    for (int n = 0; n < {right.size}; n++) printf("%d\\n", y[n]);
    return code;
}}
""")
    program = _linked(made.directory, "main.c", cpu, 1, (made.library.name,))
    done = subprocess.run(["qemu-arm", "-cpu", cpu, program], capture_output=True, text=True, check=True)
    np.testing.assert_array_equal(np.array(done.stdout.split(), int), right.ravel())
    assert made.instructions is not None, "qemu-system-arm counts instructions, and PATH does not have it"
    return {"instructions": made.instructions, "code": made.code, "weights": made.weights, "memory": made.workspace}


def _linked(folder: Path, source: str, cpu: str, runs: int, others: Sequence[str]) -> str:
    """Return the path of a program that makes so many ``runs``."""
    program = str(folder / f"{Path(source).stem}-{runs}.elf")
    command = ["arm-none-eabi-gcc", f"-mcpu={cpu}", "-mthumb", "-mfloat-abi=hard", "-O2", f"-DRUNS={runs}"]
    subprocess.run([*command, source, *others, *_LINKED, "-o", program], cwd=folder, check=True, capture_output=True)
    return program


def _instructions(program: str, cpu: str) -> int:
    """Return the instructions that a program runs in qemu, whose log has a line for each."""
    with tempfile.TemporaryDirectory() as directory:
        log = f"{directory}/log"
        os.mkfifo(log)
        words = {"QEMU_LOG": "exec,nochain", "QEMU_LOG_FILENAME": log, "QEMU_ONE_INSN_PER_TB": "1"}
        with subprocess.Popen(["grep", "-c", "^Trace", log], stdout=subprocess.PIPE, text=True) as lines:
            subprocess.run(["qemu-arm", "-cpu", cpu, program], env=os.environ | words, check=True, capture_output=True)
            return int(lines.communicate()[0])


def _library(checkout: Path, cpu: str, folder: Path) -> Path:
    """Return CMSIS-NN's functions on bytes as a library."""
    objects = folder / f"cmsis-{cpu}"
    objects.mkdir()
    every = [str(x.resolve()) for x in (checkout / "Source").rglob("*.c")]
    sources = [x for x in every if _SHARED.search(x) or not _OTHERS.search(x)]
    flags = [f"-mcpu={cpu}", "-mthumb", "-mfloat-abi=hard", "-O3", "-ffunction-sections", "-fdata-sections"]
    include = f"-I{(checkout / 'Include').resolve()}"
    for source in sources:
        command = ["arm-none-eabi-gcc", *flags, include, "-c", source, "-o", f"{Path(source).stem}.o"]
        subprocess.run(command, cwd=objects, check=True, capture_output=True)
    library = objects / "libcmsisnn.a"
    subprocess.run(["arm-none-eabi-ar", "rcs", str(library), *map(str, objects.glob("*.o"))], check=True)
    return library


def _theirs(folder: Path, network: TinyNetwork, cpu: str, library: Path, checkout: Path) -> dict[str, Any]:
    """Return the counts of CMSIS-NN. Its code is that of the functions which the linker keeps of it."""
    (folder / "cmsis.c").write_text(cmsis_nn.program_of(network, _SCRATCH))
    others = (f"-I{(checkout / 'Include').resolve()}", str(library), "-Wl,-Map=cmsis.map")
    programs = [_linked(folder, "cmsis.c", cpu, runs, others) for runs in (1, 2)]
    once, twice = (_instructions(program, cpu) for program in programs)
    done = subprocess.run(["qemu-arm", "-cpu", cpu, programs[0]], capture_output=True, text=True, check=True)
    scratch = int(done.stdout)
    kept = (folder / "cmsis.map").read_text().partition("Linker script and memory map")[2]
    sizes = re.findall(r"^ \.text\S*\s+0x[0-9a-f]+\s+(0x[0-9a-f]+) \S*libcmsisnn\.a", kept, re.MULTILINE)
    return {"instructions": twice - once, "code": sum(int(x, 16) for x in sizes),
            "weights": cmsis_nn.weights_of(network), "memory": cmsis_nn.memory_of(network) + scratch}  # fmt: skip


if __name__ == "__main__":
    main()
