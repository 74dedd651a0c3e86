"""The texts beside modules of WebAssembly: loader, threads, declarations for TypeScript, the package, and a test."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from convsmith.diag.errors import UnsupportedError
from convsmith.diag.printable import printable
from convsmith.diag.record import record
from convsmith.emulate.wasm_probe import probe_module
from convsmith.exporter.c_numbers import C_NUMBERS
from convsmith.frontend.public import public
from convsmith.machine.base import Machine
from convsmith.network.files.c_texts import PERIOD, bound_of, compared_places, returns_bits, sample_bits
from convsmith.network.image import NetworkValue
from convsmith.network.program import NetworkProgram
from convsmith.network.rewrites.small_floats import SMALL_FLOATS
from convsmith.runtime.arrays import Array, numpy_dtype

__all__ = [
    "WebModule", "WebNetwork", "declarations_text", "module_text", "package_text", "test_text", "threads_texts",
]  # fmt: skip

_ARRAYS = {
    "f32": "Float32Array", "f64": "Float64Array", "s8": "Int8Array", "u8": "Uint8Array", "s16": "Int16Array",
    "u16": "Uint16Array", "s32": "Int32Array", "f16": "Uint16Array", "bf16": "Uint16Array", "boolean": "Uint8Array",
}  # fmt: skip
"""Arrays of JavaScript by the types of their elements. Those of 16-bit floating-point numbers hold their bits."""
_DECODED = """\
/* The number that the bits of a 16-bit floating-point number stand for. */
function decoded(bits, fraction, exponent) {
  const power = (bits >> fraction) & (2 ** exponent - 1);
  const part = (bits & (2 ** fraction - 1)) / 2 ** fraction;
  const size = power ? (1 + part) * 2 ** (power - 2 ** (exponent - 1) + 1) : part * 2 ** (2 - 2 ** (exponent - 1));
  return bits >> 15 ? -size : size;
}

"""


class WebModule(NamedTuple):
    """A module: its file, the machine whose instructions an engine must have (None for those of every engine), the
    pages of the memory that its threads share (0 if one thread runs it), and the file of its weights (empty if it holds
    them).
    """

    file: str
    needs: Machine | None
    pages: int
    weights: str


@record(frozen=True)
class WebNetwork:
    """A network in WebAssembly: its first program, whose inputs and outputs are those of all, the addresses of inputs
    and outputs by name, the address of the weights, the modules in the order of preference, the sizes of files of
    weights, and the bytes of a thread's stack.
    """

    name: str
    program: NetworkProgram
    places: Mapping[str, int]
    place_of_weights: int
    modules: tuple[WebModule, ...]
    weights: Mapping[str, int]
    stack: int

    @property
    def is_shared(self) -> bool:
        """Whether several threads may run the network."""
        return any(module.pages for module in self.modules)


def module_text(own: WebNetwork) -> str:
    """Return the module of JavaScript that loads and runs the network. UnsupportedError for a type that arrays of
    JavaScript lack.
    """
    program = own.program
    tensors = (*program.inputs, *program.outputs)
    if lacking := [f"{x.name} ({x.type})" for x in tensors if x.type not in _ARRAYS]:
        raise UnsupportedError(
            f"{program.name}: arrays of JavaScript do not hold {', '.join(lacking)}; legal are types "
            f"{', '.join(_ARRAYS)}",
            code="types",
        )
    probes = {id(m.needs): base64.b64encode(probe_module(m.needs)).decode() for m in own.modules if m.needs is not None}
    modules = [
        {"file": m.file} | ({"probe": probes[id(m.needs)]} if m.needs is not None else {})
        | ({"pages": m.pages} if m.pages else {})
        | ({"weights": {"file": m.weights, "size": own.weights[m.weights]}} if m.weights else {})
        for m in own.modules
    ]  # fmt: skip
    threads = {"count": program.threads, "stack": own.stack}
    return _filled(_template("web_module.txt"), {
        "about": _about(program), "name": own.name, "modules": json.dumps(modules),
        "weights": json.dumps(own.place_of_weights),
        "import": f'import {{ Team }} from "./{own.name}.threads.js";\n' if own.is_shared else "",
        "threads": json.dumps(threads if own.is_shared else None), "team": "Team" if own.is_shared else "undefined",
        "inputs": _tensors(program.inputs), "outputs": _tensors(program.outputs), "places": json.dumps(own.places),
        "arrays": ", ".join(f"{t}: {_ARRAYS[t]}" for t in dict.fromkeys(x.type for x in tensors)),
    })  # fmt: skip


def threads_texts(own: WebNetwork) -> dict[str, str]:
    """Return the modules of JavaScript that run parts of kernels on workers, by file; none for a single thread."""
    if not own.is_shared:
        return {}
    values = {"name": own.name}
    return {
        f"{own.name}.threads.js": _filled(_template("web_threads.txt"), values),
        f"{own.name}.worker.js": _filled(_template("web_worker.txt"), values),
    }


def _template(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _about(program: NetworkProgram) -> str:
    """Return what the files are, for a comment."""
    return f"the network {_title(program)}, compiled by convsmith {public('__version__')} to WebAssembly."


def _title(program: NetworkProgram) -> str:
    """Return the name of the file of a model, without what would end a comment."""
    return printable(Path(program.name).name).replace("*/", "")


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _tensors(values: Sequence[NetworkValue]) -> str:
    lines = [f"  {json.dumps(x.name)}: {json.dumps({'type': x.type, 'shape': list(x.shape)})},\n" for x in values]
    return f"{{\n{''.join(lines)}}}"


def declarations_text(own: WebNetwork) -> str:
    """Return the declarations for TypeScript."""
    program = own.program

    def described(values: Sequence[NetworkValue]) -> str:
        lines = [
            f"  readonly {json.dumps(x.name)}: {{ readonly type: {json.dumps(x.type)}; "
            f"readonly shape: readonly {json.dumps(list(x.shape))} }};\n"
            for x in values
        ]
        return f"{{\n{''.join(lines)}}}"

    def members(values: Sequence[NetworkValue], mark: str, kind: str | None = None) -> str:
        return "".join(f"  {json.dumps(x.name)}{mark}: {kind or _ARRAYS[x.type]};\n" for x in values)

    threads_option = ""
    if own.is_shared:
        threads_option = (
            f"  /** At most {program.threads}, by default as many as the device has CPUs. */\n  threads?: number;\n"
        )
    return f"""\
/** This is {_about(program)} */

/** The inputs by name: the type of elements, and the shape of the row-major array. */
export declare const inputs: {described(program.inputs)};
/** The outputs by name, in the same form. */
export declare const outputs: {described(program.outputs)};

export interface Inputs {{
{members(program.inputs, "?", "ArrayLike<number>")}}}
export interface InputViews {{
{members(program.inputs, "")}}}
export interface Outputs {{
{members(program.outputs, "")}}}
export interface LoadOptions {{
  module?: WebAssembly.Module | BufferSource | URL;
  weights?: BufferSource | URL;
{threads_option}}}

/** A network in a memory of its own. A call of `run` blocks its thread. */
export declare class Network {{
  private constructor();
  readonly memory: WebAssembly.Memory;
  /** The number of threads that run it. */
  readonly threads: number;
  /** The elements of an input in the memory of the network, to be filled before `run`. */
  input<Name extends keyof InputViews>(name: Name): InputViews[Name];
  /** The elements of an output in the memory of the network, which the next `run` overwrites. */
  output<Name extends keyof Outputs>(name: Name): Outputs[Name];
  /**
   * Copies the given inputs, runs the network, and returns copies of its outputs by name. An output for which `results`
   * has an array is copied to that array.
   */
  run(arrays?: Inputs, results?: Partial<Outputs>): Outputs;
  /** Ends the other threads, if there are any. It does not run afterwards. */
  close(): void;
}}

/** The file of the module that this engine loads, for several threads if it may share memory between them. */
export declare function moduleFile(threads?: number): string;
/** Loads the network; module and weights are by default the files beside this one. */
export declare function load(options?: LoadOptions): Promise<Network>;
"""


def package_text(own: WebNetwork) -> str:
    """Return the description of the package, as npm takes it."""
    files = [f"{own.name}.js", f"{own.name}.d.ts", *threads_texts(own), *(m.file for m in own.modules)]
    files += [*own.weights]
    content = {
        "name": own.name.replace("_", "-").lower(), "version": "0.1.0", "private": True, "type": "module",
        "description": f"The network {_title(own.program)} in WebAssembly",
        "exports": {".": {"types": f"./{own.name}.d.ts", "default": f"./{own.name}.js"}, "./*": "./*"},
        "files": files, "sideEffects": False, "scripts": {"test": "node --test"}, "engines": {"node": ">=20"},
    }  # fmt: skip
    return json.dumps(content, indent=2) + "\n"


def _element(type_: str) -> str:
    """Return the element i of a sample, or its bits."""
    if type_ in SMALL_FLOATS:
        return f"{sample_bits(type_)}[i % {PERIOD}]"
    return "(i * 7 % 5 - 2) * 0.25" if numpy_dtype(type_).kind == "f" else "i * 7 % 5"


def test_text(own: WebNetwork, samples: Mapping[str, Array]) -> str:
    """Return the test: it fails if an element of a result differs from `samples`, the outputs of its inputs."""
    program = own.program
    bound = bound_of(program)
    expected: dict[str, dict[str, Any]] = {}
    for x in program.outputs:
        places, values = compared_places(samples[x.name])
        most = max((abs(float(v)) for v in samples[x.name].reshape(-1)), default=0.0)
        expected[x.name] = {
            "places": [int(n) for n in places], "values": [float(v) for v in values], "error": bound * most,
            **({"bits": C_NUMBERS[x.type][:2]} if x.type in SMALL_FLOATS else {}),
        }  # fmt: skip
    fills = [
        f"    const {_variable(n)} = Float64Array.from({{ length: {prod(x.shape)} }}, (_, i) => {_element(x.type)});\n"
        for n, x in enumerate(program.inputs)
    ]
    has_bits = returns_bits(program)
    counts = [1, program.threads] if own.is_shared else [1]
    given = ", ".join(f"{json.dumps(x.name)}: {_variable(n)}" for n, x in enumerate(program.inputs))
    return f"""\
// {own.name}.test.mjs: one run on small numbers, compared with results of the same network in Python: node --test
import assert from "node:assert/strict";
import test from "node:test";
import {{ load }} from "./{own.name}.js";

const EXPECTED = {json.dumps(expected)};

{_DECODED if has_bits else ""}for (const threads of {json.dumps(counts)})
  test(`{own.name} on ${{threads}} thread${{threads > 1 ? "s" : ""}}`, async () => {{
    const network = await load({{ threads }});
    assert(network.threads <= threads);
{"".join(fills)}    const results = network.run({{ {given} }});
    for (const [name, {{ places, values, error{", bits" if has_bits else ""} }}] of Object.entries(EXPECTED))
      places.forEach((place, n) => {{
        const found = {"bits ? decoded(results[name][place], ...bits) : " if has_bits else ""}results[name][place];
        assert(Math.abs(found - values[n]) <= error, `${{name}}[${{place}}] is ${{found}}, not ${{values[n]}}`);
      }});
    network.close();
  }});
"""


def _variable(number: int) -> str:
    return f"x{number}"
