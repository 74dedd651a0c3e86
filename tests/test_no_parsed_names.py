"""Names of loops and buffers are for people: no code takes them apart, or compares them with a text.

Code that needs to know what a loop or a buffer is asks for a field (`Dim.sort`, `Loop.level`, `Tensor.holds`,
`View.adds`, `Entry.packing`, ...). These tests read the packages that handle loops and buffers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import convsmith

ROOT = Path(convsmith.__file__).parent
PACKAGES = ("passes", "statement", "schedule", "codegen", "compiler", "runtime", "measure", "tune", "frontend")
PARSERS = {
    "partition", "rpartition", "split", "rsplit", "startswith", "endswith", "removeprefix", "removesuffix", "isdigit",
    "isdecimal", "fullmatch", "match", "search", "findall", "finditer",
}  # fmt: skip
ARRAYS = {"src", "wei", "bia", "dst"}
DIMS = {"mb", "g", "oc", "ic", *(letter + axis for letter in "iok" for axis in "dhw")}
NAMES = ARRAYS | DIMS | {f"diff_{name}" for name in ARRAYS}
FIELDS = {"holds", "sort", "kind", "role", "level", "dir", "argument"}
"""Fields that say what a thing is; their values are words of the code."""

CONFIG = "words of a command line, which configs are read from"
FILES = "names of files"
LLVM = "LLVM's text of types and of assembly"
LINKING = "names in the convention of object code for WebAssembly"
WGSL = "words of WGSL"
PYTHON = "names of Python's modules and interpreters"
ONNX = "an attribute of ONNX, which has words as values"
LOGS = "the log of an assembler"
LEGAL = {
    ("schedule/config_rows.py", "text.partition(':')"): CONFIG,
    ("schedule/config.py", "text.split(THEN)"): CONFIG,
    ("schedule/config.py", "name not in CONFIG_ROWS"): "words of a config",
    ("schedule/config_rows.py", "doc.split()"): "the text of a documentation",
    ("schedule/config.py", "text.split()"): CONFIG,
    ("schedule/config_rows.py", "x.partition('+')"): CONFIG,
    ("schedule/config_rows.py", "x.partition(':')"): CONFIG,
    ("schedule/config.py", "word.removeprefix('--').partition('=')"): CONFIG,
    ("schedule/config.py", "word.removeprefix('--')"): CONFIG,
    ("schedule/config.py", "word.startswith('--')"): CONFIG,
    ("schedule/config_rows.py", "text.split(',')"): CONFIG,
    ("tune/records/database.py", "name == 'config'"): "columns of a table",
    ("schedule/given.py", "place.partition('.py:')"): FILES,
    ("schedule/given.py", "call.endswith(')')"): FILES,
    ("schedule/given.py", "text.split()"): CONFIG,
    ("schedule/given.py", "word.removeprefix('--').partition('=')"): CONFIG,
    ("schedule/given.py", "word.removeprefix('--')"): CONFIG,
    ("schedule/given.py", "word.startswith('--')"): CONFIG,
    ("schedule/given.py", "threads.isdecimal()"): CONFIG,
    ("schedule/wish.py", "word.startswith(OPTION)"): CONFIG,
    ("schedule/wish.py", "text.split()"): CONFIG,
    ("schedule/wish.py", "name in _JOINING"): "fields of a dataclass",
    ("passes/vectorise.py", "str(error).removeprefix(f'{self.what}: ')"): "a message that names its pass already",
    ("codegen/artifact.py", "data.startswith(_MAGIC)"): FILES,
    ("codegen/library_functions.py", "name.endswith('f')"): "functions of the C library",
    ("codegen/wasm_module.py", "x.name != STACK_POINTER"): LINKING,
    ("codegen/wasm_object.py", "name == 'linking'"): LINKING,
    ("codegen/wasm_object.py", "name.startswith('reloc.')"): LINKING,
    ("codegen/llvm_text.py", "self.mask(s.dst.lanes).partition('> ')"): LLVM,
    ("codegen/wgsl_text.py", "name in RESERVED"): WGSL,
    ("codegen/wgsl_values.py", "_WORDS.split()"): WGSL,
    ("compiler/cache.py", "re.fullmatch(b'[0-9a-f]{64}', known)"): FILES,
    ("compiler/cache.py", "data.startswith(_MAGIC)"): FILES,
    ("compiler/cache.py", "item.name.endswith(('.py', '.json'))"): FILES,
    ("compiler/cache.py", "file.name.endswith(_SUFFIX)"): FILES,
    ("compiler/cache.py", "item.name.startswith(('__', '.'))"): FILES,
    ("runtime/opencl_drivers.py", "file.name == _LIBRARY"): FILES,
    ("compiler/ocloc.py", "_SPILLED.findall(log)"): LOGS,
    ("compiler/cubin.py", "_ENTRY.split(log)"): LOGS,
    ("compiler/cubin.py", "_USED.search(text)"): LOGS,
    ("compiler/cubin.py", "_SPILLED.search(text)"): LOGS,
    ("compiler/cubin.py", "re.findall('^.*(?:warning|C75\\\\d\\\\d).*$', log, re.M)"): LOGS,
    ("runtime/arrays.py", "sys.implementation.name != 'cpython'"): PYTHON,
    ("runtime/arrays.py", "self._dims[:2] == ('g', 'oc')"): "dims as the manifest names them for whoever calls",
    ("runtime/denormals.py", "frame.f_globals.get('__name__', '').startswith(package)"): PYTHON,
    ("runtime/denormals.py", "__name__.partition('.')"): PYTHON,
    ("runtime/foreign.py", "type(given).__module__.partition('.')"): PYTHON,
    ("runtime/opencl.py", "device.extensions.split()"): "words of a driver",
    ("runtime/packed.py", "'\\x00' not in name"): FILES,
    ("runtime/threads.py", "_RUNTIME.fullmatch(file.rpartition('/')[2])"): FILES,
    ("runtime/threads.py", "file.rpartition('/')"): FILES,
    ("tune/search/cluster.py", "str(error or f'{attempt} workers died').partition('\\n')"): "the first line",
    ("tune/search/neighbours.py", "{'ic', 'oc'} <= set(dims)"): "words of a problem's line",
    ("tune/search/neighbours.py", "name in _SIZES"): "words of a problem's line",
    ("tune/search/neighbours.py", "line.split(' ')"): "words of a problem's line",
    ("tune/search/neighbours.py", "_TOKEN.findall(descriptor)"): "words of a problem's line",
    ("tune/records/shipped.py", "file.name.removesuffix('.json')"): FILES,
    ("tune/records/shipped.py", "file.name.endswith('.json')"): FILES,
    ("tune/search/process.py", "self._rest.partition(b'\\n')"): "lines of a pipe",
    ("tune/search/worker.py", "f'{type(error).__name__}: {error}'.partition('\\n')"): "the first line",
    ("measure/onednn_library.py", "f.name.startswith('libdnnl.so')"): FILES,
    ("measure/onednn_library.py", "(name.value or b'').startswith(b'ref')"): "oneDNN's name of an implementation",
    ("measure/web.py", "line.startswith('{')"): "lines of a program, among which those of JSON are ours",
    ("measure/peak.py", "wanted.split(' x ')"): LLVM,
    ("measure/peak.py", "lines[-1].partition(' ')"): LLVM,
    ("measure/peak.py", "wanted[1:].split(' x ')"): LLVM,
    ("measure/peak.py", "line.endswith(':')"): LLVM,
    ("measure/peak.py", "v.split(' x ')"): LLVM,
    ("measure/peak.py", "vector[1:].split(' x ')"): LLVM,
    ("frontend/conv_functions.py", "name == 'activation'"): "a parameter of a function",
    ("frontend/any_sizes.py", "names.split(',')"): "a list of sizes, as it is given",
    ("frontend/numpy_api.py", "name.split(',')"): "a list of sizes, as it is given",
    ("frontend/inspection.py", "stage.isdecimal()"): "the number or the name of a pass, as it is given",
    ("onnx/window.py", "name != 'NOTSET'"): ONNX,
    ("onnx/window.py", "window.auto_pad.startswith('SAME')"): ONNX,
}  # fmt: skip
"""Texts that are no names of loops or buffers, by file, each with what it is."""


def word_of(node: ast.expr) -> str:
    """Return the last word of an attribute or a variable; empty for other expressions."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_name(node: ast.expr) -> bool:
    """Whether an expression stands for a name: an attribute or a variable that is called so."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
        return True
    word = word_of(node)
    return word in ("name", "names") or word.endswith(("_name", "_names"))


def texts(node: ast.expr, constants: set[str]) -> Iterator[str | None]:
    """Yield the texts that an expression states: of a constant of the module none is known."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Name) and node.id in constants):
        yield None
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for x in node.elts:
            yield from texts(x, constants)


def constants_of(tree: ast.Module) -> set[str]:
    """Return the names of constants that may be texts: capitals that are imported, or bound to a text here."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            found |= {x.asname or x.name for x in node.names if (x.asname or x.name).isupper()}
        elif isinstance(node, ast.Assign) and any(True for _ in texts(node.value, set())):
            found |= {x.id for target in node.targets for x in ast.walk(target) if isinstance(x, ast.Name)}
    return found


def parsed_names(source: str) -> Iterator[ast.expr]:
    """Yield the expressions that take a text apart, or compare the name of a loop or a buffer with a text."""
    tree = ast.parse(source)
    constants = constants_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PARSERS:
            of = node.func.value
            if not (isinstance(of, ast.Name) and of.id == "self") and word_of(of) not in FIELDS:
                yield node
        elif isinstance(node, ast.Subscript) and is_name(node.value) and isinstance(node.slice, ast.Slice):
            if isinstance(node.value, ast.Attribute) and node.value.attr == "name":
                yield node
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            found = [text for side in sides for text in texts(side, constants)]
            asks_field = any(word_of(side) in FIELDS for side in sides)
            named = found and any(map(is_name, sides))
            if not asks_field and (named or NAMES & set(found)):
                yield node


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_parsed(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, "the package is not found"
    found = {}
    for file in files:
        source = file.read_text(encoding="utf-8")
        place = str(file.relative_to(ROOT))
        for node in parsed_names(source):
            found[place, ast.unparse(node)] = f"convsmith/{place}:{node.lineno}: {ast.unparse(node)}"
    legal = {key for key in LEGAL if key[0].startswith(f"{package}/")}
    new = [text for key, text in found.items() if key not in legal]
    assert not new, "names are for people; give the code a field to ask:\n" + "\n".join(new)
    assert legal <= set(found), f"no longer there: {sorted(legal - set(found))}"


@pytest.mark.parametrize(
    "planted",
    [
        'loop.var.name.partition(".")', 'x.name.endswith(".o")', 'buffer.name.split("_")', 'name == "wei"',
        '"mb" in loops', 'view.name.removeprefix("diff_")', 'tensor.name[8:]', 'd.name == "k" or IMAGES == d.name',
        'packed.name == f"{operand}_p"', 'name not in ("src", "bia")', 're.match("(.*)_p", name)',
    ],
)  # fmt: skip
def test_planted_parsing_is_found(planted: str) -> None:
    assert list(parsed_names(f"from convsmith.statement.views import IMAGES\nx = {planted}\n"))


@pytest.mark.parametrize(
    "legal", ['d.sort == "images"', 'tensor.holds in ("src", "dst")', 'loop.name == other.name', 'd.kind == "k"']
)
def test_fields_may_be_compared(legal: str) -> None:
    assert not list(parsed_names(f"x = {legal}\n"))
