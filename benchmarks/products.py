"""Products of f32 matrices beside BLAS: OpenBLAS through numpy, and the library that PyTorch calls.

Run: python benchmarks/products.py
     python benchmarks/products.py --cpu-time    # one thread, by the CPU time of the process: on a shared machine
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from statistics import geometric_mean

import numpy as np
from report import Report

import convsmith as cs
from convsmith.measure.timing import Sampler, alternate, spread

SHAPES = """
32x1024:1024x3072 32x1024:1024x1024 32x1024:1024x4096 32x4096:4096x1024
128x1024:1024x3072 128x1024:1024x1024 128x1024:1024x4096 128x4096:4096x1024
5120x1024:1024x1024 5120x4096:4096x1024 512x1024:1024x1024 512x1024:1024x4096 512x4096:4096x1024
2048x13:13x512 2048x512:512x256 2048x256:256x128 2048x479:479x1024 2048x1024:1024x1024 2048x1024:1024x512
2048x512:512x13 2048x256:256x512 2048x128:128x256 2048x1024:1024x479 2048x512:512x1024
13x2048:2048x512 512x2048:2048x256 256x2048:2048x128 479x2048:2048x1024 1024x2048:2048x1024
4096x4096:4096x4096
""".split()
"""Products of BERT-large, of a transformer for translation and of DLRM with its gradients, from oneDNN's benchdnn
(inputs/matmul/shapes_converted_ip_tr_*), and one beyond all caches."""
ROUNDS = 9
THREADS = (1, 2)
SUBJECTS = ("in the call", "packed before", "numpy", "torch")


class _CpuSampler(Sampler):
    """Returns the CPU seconds per call of a sample."""

    def __call__(self) -> float:
        before = self._cpu
        super().__call__()
        return (self._cpu - before) / self.repeats


SAMPLERS = {"wall": Sampler, "cpu": _CpuSampler}


def main() -> None:
    by_cpu_time = sys.argv[1:] == ["--cpu-time"]
    if sys.argv[1:] and not by_cpu_time:
        threads, sampler = int(sys.argv[1]), SAMPLERS[sys.argv[2]]
        print(json.dumps([_row(shape, threads, sampler) for shape in SHAPES]))
        return
    report = Report("products", "Products of f32 matrices beside BLAS")
    report.note(
        f"Times of the library divided by convsmith's, medians of {ROUNDS} alternating rounds. Both matrices are in "
        "order of rows. A product packs the right one in the call, or finds it packed; the libraries pack in the call. "
        "OpenBLAS runs under OPENBLAS_THREAD_TIMEOUT=4, so that its idle threads do not occupy a CPU."
    )
    if by_cpu_time:
        report.note("Times are CPU times of the process, which other processes on the machine do not change much.")
    data: dict[str, object] = {}
    for threads in THREADS[:1] if by_cpu_time else THREADS:
        names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
        # Threads of OpenBLAS would otherwise wait for 2^26 cycles in a loop, beside the next subject's threads.
        limits = {**dict.fromkeys(names, str(threads)), "OPENBLAS_THREAD_TIMEOUT": "4"}
        child = subprocess.run(
            [sys.executable, __file__, str(threads), "cpu" if by_cpu_time else "wall"],
            env={**os.environ, **limits}, stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        found = json.loads(child.stdout)
        data[f"{threads} threads"] = found
        rows = [_printed(row) for row in found]
        for word, of in (("geometric mean", geometric_mean), ("least", min)):
            means = [of([row["times"][theirs]["median"] / row["times"][ours]["median"] for row in found])
                     for ours in SUBJECTS[:2] for theirs in SUBJECTS[2:]]  # fmt: skip
            rows.append([word, "", "", *(f"{x:.2f}" for x in means)])
        columns = [f"{theirs}, {ours}" for ours in SUBJECTS[:2] for theirs in SUBJECTS[2:]]
        report.table(
            f"{threads} thread{'s' * (threads > 1)}", ["product", "config", "GFLOP/s, packed before", *columns], rows
        )
    report.data = data
    report.write()


def _row(shape: str, threads: int, sampler: type[Sampler]) -> dict[str, object]:
    """Return the times of a product, whose values are integers, so that all results are equal."""
    import torch

    torch.set_num_threads(threads)
    (m, k), (_, n) = (map(int, side.split("x")) for side in shape.split(":"))
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, size).astype(np.float32) for size in ((m, k), (k, n)))
    ours, theirs, torchs = (np.empty((m, n), np.float32) for _ in range(3))
    kernel = cs.compile(f"--matmul {shape}", threads=threads)
    packed, of_torch = kernel.pack(b), [torch.from_numpy(x) for x in (a, b, torchs)]
    calls = {
        "in the call": lambda: kernel(a, b, out=ours), "packed before": lambda: kernel(a, packed, out=ours),
        "numpy": lambda: np.matmul(a, b, out=theirs),
        "torch": lambda: torch.mm(of_torch[0], of_torch[1], out=of_torch[2]),
    }  # fmt: skip
    for _ in range(2):  # the second call with plain weights makes a kernel for them
        calls["in the call"]()
    taken = alternate({name: sampler(call) for name, call in calls.items()}, ROUNDS)
    if not (np.array_equal(ours, theirs) and np.array_equal(ours, torchs)):
        raise SystemExit(f"{shape}: the results differ")
    times = {name: asdict(spread(each)) for name, each in taken.items()}
    return {"shape": shape, "flops": 2 * m * n * k, "config": str(kernel.config), "times": times}


def _printed(row: dict[str, object]) -> list[str]:
    times = {name: each["median"] for name, each in row["times"].items()}
    short = " ".join(w for w in str(row["config"]).split() if w.startswith(("--lane", "--register", "--cache")))
    ratios = [f"{times[theirs] / times[ours]:.2f}" for ours in SUBJECTS[:2] for theirs in SUBJECTS[2:]]
    return [row["shape"], f"`{short}`", f"{row['flops'] / times['packed before'] * 1e-9:.0f}", *ratios]


if __name__ == "__main__":
    main()
