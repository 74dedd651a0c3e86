"""`convsmith network`: a whole model as one function: run, verified, timed, explained, saved and exported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from convsmith.cli.group import CommandGroup
from convsmith.cli.models import ModelInputs, input_option, is_model, shapes_of
from convsmith.cli.output import error_line, note, progress
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.files import whole_file
from convsmith.diag.forking import import_lock
from convsmith.diag.printable import printable
from convsmith.diag.settings import MAX_THREADS, settings
from convsmith.exporter.names import check_name, legal_name
from convsmith.exporter.target import THIS_MACHINE
from convsmith.measure.timing import ROUNDS, measure
from convsmith.network.graph import Graph
from convsmith.network.image import NetworkValue
from convsmith.network.network import Network
from convsmith.network.quantised.integers import is_quantised
from convsmith.network.reference import compared, reference_outputs
from convsmith.network.rewrites.fold import folded
from convsmith.network.rewrites.small_floats import DTYPES, SMALL_FLOATS
from convsmith.network.sizes import NetworkOfSizes, load
from convsmith.onnx.calibration import METHODS
from convsmith.onnx.graph import read_graph
from convsmith.onnx.network import export_for, network_of
from convsmith.onnx.quantisation import quantize as quantize_model
from convsmith.runtime.arrays import Array, numpy_dtype

__all__ = ["network"]

F = TypeVar("F", bound=Callable[..., Any])

_SAVED = ".cs"
"""The end of the names of files that `save` writes."""


@click.group(cls=CommandGroup, epilog="Example: convsmith network bench resnet50.onnx --threads 1")
def network() -> None:
    """Compile a whole ONNX model to one function."""


def _model_options(command: F) -> F:
    """Add the model, its inputs and the number of threads."""
    threads = click.option(
        "--threads", type=click.IntRange(1, MAX_THREADS), help="Threads of a kernel.  [default: all CPUs]"
    )
    return click.argument("source", metavar="MODEL.onnx")(input_option(threads(command)))


def _seed_option(command: F) -> F:
    return click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of inputs.")(command)


def _dtype_option(command: F) -> F:
    kinds, first = click.Choice(DTYPES), DTYPES[0]
    return click.option("--dtype", type=kinds, default=first, show_default=True, help="Type of inner values.")(command)


@network.command(epilog="Example: convsmith network run model.onnx --input x=1x3x224x224 -o results.npz")
@_model_options
@_seed_option
@_dtype_option
@click.option("-o", "--output", metavar="FILE.npz", help="Write the outputs to a file of numpy.savez.")
def run(
    source: str, threads: int | None, inputs: ModelInputs, seed: int, dtype: str, output: str | None
) -> None:  # fmt: skip
    """Run a model, or a file that `network save` wrote, once: on the files of --input, and random numbers for other
    inputs. Print shape, least, mean and largest element of each output.
    """
    settings.validate()
    if source.endswith(_SAVED):
        if dtype != DTYPES[0]:
            raise UsageError(f"--dtype={dtype}: {source} is compiled already; legal is a model", code="bad-option")
        net = _loaded(source, inputs)
    else:
        net = _compiled(source, inputs, threads, dtype)
    arrays = _arrays(net.image.inputs, inputs, seed)
    results = net.run(arrays)
    for name, y in results.items():
        wide = y.astype(np.float64)
        numbers = f"{wide.min():.6g} to {wide.max():.6g}, mean {wide.mean():.6g}" if y.size else "no elements"
        note(f"{printable(name)}: {y.dtype} {' x '.join(map(str, y.shape))}, {numbers}")
    if output is not None:
        try:
            with whole_file(output) as file:
                np.savez(file, allow_pickle=False, **results)
        except OSError as error:
            raise UsageError(f"--output={output}: cannot be written: {error.strerror}", code="bad-file") from None


@network.command(epilog="Example: convsmith network verify model.onnx")
@_model_options
@_seed_option
def verify(source: str, threads: int | None, inputs: ModelInputs, seed: int) -> None:
    """Compare the outputs of a model with those of its operators in numpy, on the files of --input or random numbers.

    Each element may be off by 1e-5 of the largest element of its output, or by four roundings of the types of 16 bits
    in which the model stores values. Exit status 1: some output is off by more.
    """
    settings.validate()
    graph = _graph(source, inputs)
    net = network_of(graph, threads, _compiling)
    arrays = _arrays(net.image.inputs, inputs, seed)
    stated = folded(graph) if is_quantised(graph) else graph
    verdicts = compared(reference_outputs(stated, arrays), net.run(arrays), graph.small.values())
    for verdict in verdicts:
        line = f"{printable(verdict.name)}: off by {verdict.error:.1e} of the largest element"
        note(f"right: {line}") if verdict.ok else error_line(f"mismatch: {line}")
    click.get_current_context().exit(0 if all(verdict.ok for verdict in verdicts) else 1)


@network.command(epilog="Example: convsmith network bench model.onnx --threads 1")
@_model_options
@_seed_option
@click.option("--rounds", type=click.IntRange(1), default=ROUNDS, show_default=True, help="Rounds of samples.")
@click.option("--vs", metavar="LIBRARY", default="onnxruntime", show_default=True, help="onnxruntime, or none.")
@_dtype_option
def bench(
    source: str, threads: int | None, inputs: ModelInputs, seed: int, rounds: int, vs: str, dtype: str
) -> None:  # fmt: skip
    """Time a model beside ONNX Runtime on as many threads, in rounds in which both run in turn.

    The ratio is ONNX Runtime's time divided by ours (above 1: we are faster).
    """
    settings.validate()
    if vs not in ("onnxruntime", "none"):
        raise UsageError(f"--vs={vs} is not legal; legal are onnxruntime and none", code="bad-option")
    graph = _graph(source, inputs)
    net = network_of(graph, threads, _compiling, dtype)
    arrays = _arrays(net.image.inputs, inputs, seed)
    results = net.run(arrays)
    peers, count = {}, max(net.threads, 1)
    if vs == "onnxruntime":
        peers[vs] = session = _session(source, arrays, list(results), count)
        verdicts = compared(dict(zip(results, session())), results)
        worst = max((verdict.error for verdict in verdicts), default=0.0)
        note(f"outputs are within {worst:.1e} of the largest element of ONNX Runtime's")
    made = measure(lambda: net.run({**arrays, **results}), 1.0, None, peers, rounds, count)
    note(f"{source}: {made.seconds.median * 1e3:.3f} ms on {count} thread{'s' * (count > 1)}")
    for name, peer in made.peers.items():
        note(f"{name}: {peer.seconds.median * 1e3:.3f} ms, ratio {peer.speedup.median:.2f}")


@network.command(epilog="Example: convsmith network explain model.onnx --time")
@_model_options
@_seed_option
@click.option("--time", "is_timed", is_flag=True, help="Time each step, and name those that take most time.")
@click.option("--html", metavar="FILE", help="Write a page for a browser too, with the time of each step.")
@_dtype_option
def explain(
    source: str, threads: int | None, inputs: ModelInputs, seed: int, is_timed: bool, html: str | None, dtype: str
) -> None:  # fmt: skip
    """Print inputs, outputs, memory and weights of a model, and what each of its steps computes."""
    settings.validate()
    net = _compiled(source, inputs, threads, dtype)
    note(net.explain(_arrays(net.image.inputs, inputs, seed) if is_timed or html is not None else None, html))


@network.command(epilog="Example: convsmith network save model.onnx -o model.cs")
@_model_options
@click.option("-o", "--output", metavar="FILE.cs", required=True, help="The file that `convsmith.load` reads.")
@_dtype_option
def save(source: str, threads: int | None, inputs: ModelInputs, output: str, dtype: str) -> None:
    """Compile a model to a file that another process loads without compiling."""
    settings.validate()
    net = _compiled(source, inputs, threads, dtype)
    net.save(output)
    note(f"{output}  {Path(output).stat().st_size} bytes, for {net.image.driver.target}")


@network.command(epilog="Example: convsmith network quantize model.onnx -o int8.onnx --samples samples.npz")
@click.argument("source", metavar="MODEL.onnx")
@input_option
@click.option("-o", "--output", metavar="OUT.onnx", required=True, help="The file of the quantised model.")
@click.option(
    "--samples", metavar="FILE.npz", required=True,
    help="Arrays by the names of inputs; their first dim counts samples, as many as the batch at a time.",
)
@click.option("--method", type=click.Choice(METHODS), default=METHODS[0], help="Choice of ranges.  [default: min-max]")
@click.option("--percentile", type=float, default=99.99, show_default=True, help="Percent of numbers in a range.")
def quantize(source: str, inputs: ModelInputs, output: str, samples: str, method: str, percentile: float) -> None:
    """Write a model as one that computes with bytes, u8 values and s8 weights, and print the ratio of signal to noise
    of each of its values on the samples.
    """
    settings.validate()
    graph = _graph(source, inputs)
    made = quantize_model(
        source, _samples(samples, graph), method=method, percentile=percentile, inputs=shapes_of(inputs)
    )
    made.save(output)
    note(f"{made}\n{output}  {Path(output).stat().st_size} bytes")


def _samples(path: str, graph: Graph) -> list[dict[str, Array]]:
    """Return the samples in a file, each as many rows of its arrays as the batch of an input."""
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"--samples={path}: is no file of numpy.savez: {error}", code="bad-file") from None
    found: list[dict[str, Array]] = []
    for x in graph.inputs:
        rows = held.get(x.name)
        size = x.shape[0] if x.shape else 0
        if rows is None or rows.shape[1:] != x.shape[1:] or not size or len(rows) % size:
            given = "nothing" if rows is None else str(rows.shape)
            legal = f"a multiple of {size} rows of {x.shape[1:]}"
            raise UsageError(f"--samples={path}: {x.name} has {given}; legal is {legal}", code="samples")
        parts = [rows[n : n + size].astype(numpy_dtype(x.type)) for n in range(0, len(rows), size)]
        found = found or [{} for _ in parts]
        for sample, part in zip(found, parts, strict=True):
            sample[x.name] = part
    return found


@network.command(epilog="Example: convsmith network export model.onnx -o library --name net")
@_model_options
@click.option("-o", "--output", metavar="DIR", required=True, help="Directory of the files; it is made.")
@click.option("--name", metavar="NAME", help="Name of the function.  [default: the file's]")
@click.option("--target", metavar="TARGET", help="cpu (this machine, the default), one level or several, or a triple.")
@click.option("--weights", metavar="PLACE", help="Weights of wasm32: beside the modules (the default), or inside.")
def export(
    source: str, threads: int | None, inputs: ModelInputs, output: str, name: str | None, target: str | None,
    weights: str | None,
) -> None:  # fmt: skip
    """Write a model as one function of C: a static library with the weights, a header, a manifest and an example that
    checks itself. The function allocates nothing and calls no library.

    For wasm32+relaxed or wasm32, write it as modules of WebAssembly, with a module of JavaScript that loads them in
    browsers, Node and Deno, declarations for TypeScript, a package and a test that node --test runs.
    """
    settings.validate()
    own = check_name(name) if name is not None else legal_name(Path(source).stem, "net")
    graph = _graph(source, inputs)
    if target in (None, THIS_MACHINE) and weights is None:
        library = network_of(graph, threads, _compiling).export(output, own)
    else:
        library = export_for(graph, output, own, target or THIS_MACHINE, threads, weights)
    width = max(len(str(file)) for file in library.files)
    for file in library.files:
        note(f"{file!s:{width}}  {file.stat().st_size} bytes")
    if library.code:
        note(f"code {library.code} bytes, weights {library.weights} bytes")
    note(f"workspace {library.workspace} bytes")
    if library.instructions is not None:
        note(f"instructions {library.instructions} in a call, counted in an emulator")


@contextmanager
def _compiling(count: int) -> Iterator[Callable[[], None]]:
    """Yield a function that counts one more kernel of `count`, on a progress bar on a terminal."""
    with progress(count) as bar:
        bar.start("kernels")
        yield bar.advance


def _compiled(source: str, inputs: ModelInputs, threads: int | None, dtype: str) -> Network:
    """Return the function of the model in a file, whose inner values of f32 are of `dtype`."""
    return network_of(_graph(source, inputs), threads, _compiling, dtype)


def _loaded(source: str, inputs: ModelInputs) -> Network:
    """Return the network in a file; of several sizes, the plan for those of --input, by default the first plan."""
    found = load(source)
    if not isinstance(found, NetworkOfSizes):
        return found
    first = found.plans[0]
    return found.at({**first.inputs, **shapes_of(inputs)})


def _graph(source: str, inputs: ModelInputs) -> Graph:
    """Return the graph of the model in a file. UsageError if the file has another name than a model's."""
    if not is_model(source):
        raise UsageError(f"{source} is no model; legal is the file of an ONNX model, MODEL.onnx", code="bad-file")
    return read_graph(source, shapes_of(inputs))


def _arrays(values: tuple[NetworkValue, ...], given: ModelInputs, seed: int) -> dict[str, Array]:
    """Return an array for each input: the one that is given, or random numbers."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for x in values:
        held = given.get(x.name)
        if held is not None and not isinstance(held, tuple):
            found[x.name] = held
        elif x.type in ("f32", "f64", *SMALL_FLOATS):
            found[x.name] = rng.standard_normal(x.shape).astype(x.dtype)
        else:
            found[x.name] = rng.integers(0, 100, x.shape).astype(x.dtype)
    return found


def _session(source: str, arrays: Mapping[str, Array], outputs: list[str], threads: int) -> Callable[[], list[Array]]:
    """Return a call of ONNX Runtime on the model. UnsupportedError if it is not installed."""
    with import_lock:
        try:
            import onnxruntime
        except ImportError:
            raise UnsupportedError("--vs=onnxruntime needs that package; legal without it is --vs none") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(source, options)
    return lambda: list(session.run(outputs, dict(arrays)))
