"""Whole networks: `convsmith.torch.optimize` beside PyTorch, torch.compile and ONNX Runtime; a training step.

Run: python benchmarks/models.py [--models resnet50,mobilenet_v2] [--batches 1,16] [--threads 1,2]

torch.compile takes half a minute for a network, a batch and a number of threads. `--prepare` fills its cache and
convsmith's, and measures nothing. An interrupt ends a run with a page of what was measured. With `--keep`, the page has
the rows of the day's earlier runs as well. These runs make the whole page, in at most four minutes each where the
caches are filled:

    python benchmarks/models.py --keep --threads 1 --batches 1
    python benchmarks/models.py --keep --threads 2 --batches 1
    python benchmarks/models.py --keep --threads 1 --batches 16 --no-train --models resnet50,mobilenet_v2,mobilenet_v3
    python benchmarks/models.py --keep --threads 1 --batches 16 --no-train --models efficientnet_b0,convnext_tiny,unet
    python benchmarks/models.py --keep --threads 1 --batches 16 --no-train --models resnet3d_18
    python benchmarks/models.py --keep --threads 2 --batches 16 --no-train
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from io import BytesIO
from statistics import median
from typing import Any

from report import Report

from convsmith.measure.timing import Sampler, alternate, spread

PEERS = {"eager": "torch", "compile": "torch", "onnxruntime": "onnxruntime"}
"""Ways to run a network beside ours, and the package of each."""
GOALS = {"resnet50": 1.15, "mobilenet_v2": 1.3}
"""Ratios of the best peer's time to ours that are aimed at."""
SAMPLE_SECONDS = 0.05
"""Seconds of a sample, of several calls where these are short."""
ROW_SECONDS, FEWEST_ROUNDS = 6.0, 3
"""Seconds after which the rounds of a network end, and rounds that are run in any case."""
TRAINED = {"resnet18": 8, "mobilenet_v2": 8, "unet": 1}
"""The networks of the training steps, with the samples of a batch."""
ONLY_TRAINED = "resnet18"
"""The network that is measured in a training step alone."""

Row = dict[str, Any]
Call = Callable[[], object]


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    if options.one:
        print(json.dumps(measured(*json.loads(options.one))))
        return
    if options.prepare:
        options.rounds, options.train = 0, False
        peers = [name for name in options.peers.split(",") if find_spec(PEERS[name]) and name == "compile"]
        for _ in _measured_rows(options, peers):
            pass
        return
    report = Report("models", "Whole networks beside PyTorch and ONNX Runtime")
    libraries = {name: version(name) for name in {*PEERS.values()} if find_spec(name)}
    report.data = {"runs": [], "runs_of": "networks"}
    peers = [name for name in options.peers.split(",") if find_spec(PEERS[name])]
    results = report.stem.with_suffix(".json")
    earlier = json.loads(results.read_text(encoding="utf-8")) if options.keep and results.exists() else {"runs": []}
    rows = {_key(row): row for run in earlier["runs"] for row in run["rows"]}
    commands = [*earlier.get("commands", []), shlex.join(["python", "benchmarks/models.py", *sys.argv[1:]])]
    try:
        for row in _measured_rows(options, peers):
            rows[_key(row)] = row
    finally:
        report.data["commands"] = commands
        report.data["runs"].append({"libraries": libraries, "rows": list(rows.values())})
        report.note(f"The rows are of these runs, a later one replacing rows of an earlier one: {_listed(commands)}.")
        _tables(report, list(rows.values()), peers)
        report.write()


def _listed(commands: Sequence[str]) -> str:
    return "; ".join(f"`{command}`" for command in commands)


def _key(row: Row) -> tuple[str, int, int]:
    return row["network"], row["batch"], row["threads"]


def _measured_rows(options: argparse.Namespace, peers: Sequence[str]) -> Iterator[Row]:
    """Yield a row for each network, batch and number of threads, and for each training step."""
    for threads in map(int, options.threads.split(",")):
        for batch in map(int, options.batches.split(",")):
            for name in filter(None, options.models.split(",")):
                ways = [way for way in peers if way != "compile" or name in options.compiled.split(",")]
                yield _in_a_process(name, batch, threads, ways, options.rounds)
        if options.train:
            for name in options.trained.split(","):
                batch = TRAINED[name]
                for accuracy in ("", " relaxed"):
                    yield _in_a_process(f"train {name}{accuracy}", batch, threads, ["eager"], options.rounds)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    from torch_networks import NETWORKS

    parser = argparse.ArgumentParser(description="Whole networks beside other libraries.")
    names = ",".join(name for name in NETWORKS if name != ONLY_TRAINED)
    parser.add_argument("--models", default=names, help=f"networks, with commas between (default: {names})")
    parser.add_argument("--batches", default="1,16", help="samples in a batch (default: 1,16)")
    parser.add_argument("--threads", default="1,2", help="thread counts (default: 1,2)")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)} (default: all)")
    parser.add_argument("--compiled", default=names, help="networks for torch.compile too (default: all)")
    parser.add_argument("--prepare", action="store_true", help="fill the caches of compilers, and measure nothing")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each comparison at most (default: 15)")
    named = ",".join(TRAINED)
    parser.add_argument("--trained", default=named, help=f"networks of training steps (default: {named})")
    parser.add_argument("--train", action=argparse.BooleanOptionalAction, default=True, help="the training step too")
    parser.add_argument("--keep", action="store_true", help="keep the rows of the day's earlier runs")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _in_a_process(*what: object) -> Row:
    """Return what `measured` returns, from a process of its own: libraries keep threads and memory."""
    command = [sys.executable, __file__, "--one", json.dumps(what)]
    done = subprocess.run(command, text=True, capture_output=True, check=False, env=os.environ)
    if done.returncode:
        sys.exit(f"{what}: {done.stderr}")
    row: Row = json.loads(done.stdout.splitlines()[-1])
    taken = f"{row['seconds']['ours']['median'] * 1e3:.2f} ms" if row["seconds"] else "prepared"
    print(f"{what}: {taken}", file=sys.stderr)
    return row


def measured(name: str, batch: int, threads: int, peers: Sequence[str], rounds: int) -> Row:
    """Return times and ratios of a network, or of its training step, on so many threads; none if no `rounds` are run.
    """
    import torch

    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    if name.startswith("train "):
        trained, _, accuracy = name.removeprefix("train ").partition(" ")
        calls, facts = _training(trained, batch, accuracy or "strict")
    else:
        calls, facts = _inference(name, batch, threads, peers)
    if not rounds:
        for call in calls.values():
            call()
        return {"network": name, "batch": batch, "threads": threads, "seconds": {}}
    samplers = {way: Sampler(call, SAMPLE_SECONDS) for way, call in calls.items()}
    samples = alternate(samplers, 1)
    round_seconds = sum(2 * samples[way][0] * samplers[way].repeats for way in samplers)
    more = alternate(samplers, min(rounds, max(FEWEST_ROUNDS, int(ROW_SECONDS / round_seconds))) - 1)
    samples = {way: values + more[way] for way, values in samples.items()}
    ratios = {way: spread([a / b for a, b in zip(samples[way], samples["ours"])]) for way in samples if way != "ours"}
    return {
        "network": name, "batch": batch, "threads": threads, **facts,
        "seconds": {way: asdict(spread(values)) for way, values in samples.items()},
        "ratios": {way: asdict(value) for way, value in ratios.items()},
    }  # fmt: skip


def _inference(name: str, batch: int, threads: int, peers: Sequence[str]) -> tuple[dict[str, Call], Row]:
    """Return a call for each way to run the network, and what `optimize` reports."""
    import torch
    from torch_networks import network

    import convsmith.torch as ct

    model, x = network(name, batch)
    onnx = _session(model, x, threads) if "onnxruntime" in peers else None
    start = time.perf_counter()
    fast = ct.optimize(model, x, progress=False)
    first = time.perf_counter() - start
    again = []
    for _ in range(3 if batch == 1 else 1):
        start = time.perf_counter()
        ct.optimize(model, x, progress=False)
        again.append(time.perf_counter() - start)
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    model, given = model.to(memory_format=last), x.contiguous(memory_format=last)
    ways: dict[str, Callable[[], object]] = {"ours": lambda: fast(given)}
    if "eager" in peers:
        ways["eager"] = lambda: model(given)
    if "compile" in peers:
        compiled = torch.compile(model)
        ways["compile"] = lambda: compiled(given)
    calls = {way: _without_gradients(call) for way, call in ways.items()}
    if onnx is not None:
        calls["onnxruntime"] = onnx
    report = fast.convsmith_report
    return calls, {
        "optimize_seconds": {"first": first, "again": median(again)}, "difference": report.difference,
        "ours": report.ours, "convolutions": report.convolutions,
    }  # fmt: skip


def _without_gradients(call: Call) -> Call:
    import torch

    def run() -> object:
        with torch.inference_mode():
            return call()

    return run


def _session(model: Any, x: Any, threads: int) -> Call:
    """Return the call of ONNX Runtime's session of the network, on its own memory."""
    import onnxruntime as ort
    import torch

    file = BytesIO()
    torch.onnx.export(model, (x,), file, dynamo=False, opset_version=17)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = ort.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_ortvalue_input(session.get_inputs()[0].name, ort.OrtValue.ortvalue_from_numpy(x.numpy()))
    binding.bind_output(session.get_outputs()[0].name)
    return lambda: session.run_with_iobinding(binding)


def _training(name: str, batch: int, accuracy: str) -> tuple[dict[str, Call], Row]:
    """Return a call of a step of gradient descent of a network by eager torch, and by our operators in their place, of
    an accuracy.
    """
    import torch
    from torch import nn
    from torch_networks import network

    import convsmith.torch as ct
    from convsmith.diag.settings import settings

    def step(model: nn.Module, x: Any) -> Call:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def run() -> object:
            with settings.scope(accuracy=accuracy):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                return optimizer.step()

        return run

    class OurConv2d(nn.Conv2d):
        """A convolution by our operator."""

        def forward(self, x: Any) -> Any:
            return ct.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    class OurConvTranspose2d(nn.ConvTranspose2d):
        """A transposed convolution by our operator."""

        def forward(self, x: Any) -> Any:  # type: ignore[override]
            own = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
            return ct.conv_transpose2d(x, self.weight, self.bias, *own)

    classes = {nn.Conv2d: OurConv2d, nn.ConvTranspose2d: OurConvTranspose2d}
    last = torch.channels_last
    eager, x = network(name, batch)
    ours, _ = network(name, batch)
    for module in ours.modules():
        module.__class__ = classes.get(type(module), type(module))  # type: ignore[call-overload]
    x = x.contiguous(memory_format=last)
    return {
        "ours": step(ours.train().to(memory_format=last), x), "eager": step(eager.train().to(memory_format=last), x),
    }, {}  # fmt: skip


def _tables(report: Report, rows: Sequence[Row], peers: Sequence[str]) -> None:
    """Add a table for each number of threads and batch."""
    report.note(
        "Random weights, f32, channels-last sources. A column is a way's time divided by ours (above 1: ours is "
        "faster): the median over rounds in which all ran in turn, each several times where a call is short. eager: "
        "PyTorch's modules in channels-last memory format; compile: torch.compile with its defaults; onnxruntime: a "
        "session of the exported network. optimize s: seconds of the first call, with what the cache on disk has, and "
        "of later ones. difference: the largest of an output, divided by eager's largest output. train: a step of "
        "gradient descent, with strict sums, or relaxed: CONVSMITH_ACCURACY=relaxed."
    )
    for threads in dict.fromkeys(row["threads"] for row in rows):
        for batch in dict.fromkeys(row["batch"] for row in rows):
            lines = [_line(row, peers) for row in rows if (row["threads"], row["batch"]) == (threads, batch)]
            if lines:
                heading = f"Batch {batch}, {threads} thread{'s' * (threads > 1)}"
                columns = ["network", "ms", *peers, "best", "goal", "optimize s", "difference", "ours"]
                report.table(heading, columns, lines)


def _line(row: Row, peers: Sequence[str]) -> list[str]:
    ratios = {way: row["ratios"][way]["median"] for way in peers if way in row["ratios"]}
    training = row["network"].startswith("train ")
    goal = 1.0 if training else GOALS.get(row["network"], 0.98)
    seconds = row.get("optimize_seconds")
    return [
        row["network"], f"{row['seconds']['ours']['median'] * 1e3:.2f}",
        *(f"{ratios[way]:.2f}" if way in ratios else "-" for way in peers),
        f"{min(ratios.values(), default=0):.2f}",
        f"{goal:.2f}" + (" of eager" if not training and row["network"] not in GOALS else ""),
        "-" if seconds is None else f"{seconds['first']:.1f}, {seconds['again']:.2f}",
        "-" if training else f"{row['difference']:.0e}",
        "-" if training else f"{row['ours']} of {row['convolutions']}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
