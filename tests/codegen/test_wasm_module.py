"""Modules of WebAssembly from objects: what they import and export, where their data lie, and what is refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from convsmith.codegen import llvm_bind
from convsmith.codegen.wasm_module import PAGE_BYTES, ModuleMemory, number, signed, wasm_module
from convsmith.codegen.wasm_object import WasmObject, WasmReader
from convsmith.diag.errors import ToolchainError
from convsmith.machine.registry import target

LEVEL = target("wasm32")
HEAD = f'target triple = "{LEVEL.triple}"\n'
TABLE = HEAD + """
@table = internal constant [3 x i32] [i32 5, i32 7, i32 11], align 16
@places = internal constant [2 x ptr] [ptr @table, ptr getelementptr (i8, ptr @table, i32 8)]
@far = external global i32
declare i32 @outside(i32)
define i32 @entry(i32 %n) {
  %place = getelementptr ptr, ptr @places, i32 %n
  %at = load ptr, ptr %place
  %x = load i32, ptr %at
  %y = load i32, ptr @far
  %sum = add i32 %x, %y
  %z = call i32 @outside(i32 %sum)
  ret i32 %z
}
define hidden i32 @inner() { ret i32 1 }
@second = alias i32 (i32), ptr @entry
"""


def code_of(text: str) -> bytes:
    return llvm_bind.object_code(text, LEVEL.triple, LEVEL.cpu, LEVEL.features)


@pytest.mark.parametrize("value", [0, 1, 63, 64, 127, 128, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
def test_numbers(value: int) -> None:
    for size in (1, 5):
        written = number(value, size)
        assert len(written) >= size and WasmReader(written).number() == value
        again = signed(value, size)
        assert len(again) >= size and WasmReader(again).signed() % (1 << 32) == value


def test_the_symbols_of_an_object() -> None:
    own = WasmObject(code_of(TABLE))
    assert set(own.functions) == {"entry", "second"} and own.functions["entry"] == own.functions["second"]
    assert own.undefined == ("far", "outside")
    assert [x.alignment for x in own.segments] == [16, 4]


def run_in_node(module: bytes, script: str, folder: Path, instance: bool = True) -> str:
    """The output of a script that has a module and its instance, with `outside` as the function that doubles."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no Node")
    (folder / "module.wasm").write_bytes(module)
    text = (
        'const bytes = require("fs").readFileSync("module.wasm"); if (!WebAssembly.validate(bytes)) throw 1;'
        "const module = new WebAssembly.Module(bytes); const memory = new WebAssembly.Memory({initial: 2});"
    )
    if instance:
        text += "const {exports} = new WebAssembly.Instance(module, {env: {memory, outside: x => 2 * x}});"
    text += script
    done = subprocess.run([node, "-e", text], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_module_with_a_memory_of_its_own(tmp_path: Path) -> None:
    memory = ModuleMemory(1024, PAGE_BYTES, 3, {"far": 2048}, ((2048, (100).to_bytes(4, "little")),))
    module = wasm_module(code_of(TABLE), ("entry", "second"), memory)
    script = "console.log([0, 1].map(exports.entry), exports.second(1), exports.memory.buffer.byteLength / 65536)"
    assert run_in_node(module, script, tmp_path) == "[ 210, 222 ] 222 3"
    script = "console.log(exports.__stack_pointer.value, Object.keys(exports).join())"
    assert run_in_node(module, script, tmp_path) == "65536 entry,second,__stack_pointer,memory"


def test_a_module_takes_the_memory_of_others(tmp_path: Path) -> None:
    module = wasm_module(code_of(TABLE), ("entry",), ModuleMemory(4096, 0, outside={"far": 8}))
    script = "new Int32Array(memory.buffer)[2] = 1; console.log([0, 1].map(exports.entry), 'memory' in exports)"
    assert run_in_node(module, script, tmp_path) == "[ 12, 24 ] false"


def test_threads_share_a_memory(tmp_path: Path) -> None:
    """A module on a shared memory imports it with its exact size."""
    module = wasm_module(code_of(TABLE), ("entry",), ModuleMemory(4096, PAGE_BYTES, 2, {"far": 8}, is_shared=True))
    script = """
    const shared = new WebAssembly.Memory({initial: 2, maximum: 2, shared: true});
    const found = [2, 3].map(maximum => {
      const memory = maximum === 2 ? shared : new WebAssembly.Memory({initial: 2, maximum, shared: true});
      try { return new WebAssembly.Instance(module, {env: {memory, outside: x => x}}).exports.entry(1); }
      catch (error) { return error.name; }
    });
    console.log(found.join(), new Int32Array(shared.buffer)[1024]);
    """
    assert run_in_node(module, script, tmp_path, instance=False) == "11,LinkError 5"


def test_functions_in_a_table(tmp_path: Path) -> None:
    text = HEAD + """
    @functions = internal constant [2 x ptr] [ptr @one, ptr @two]
    define internal i32 @one() { ret i32 1 }
    define internal i32 @two() { ret i32 2 }
    define i32 @entry(i32 %n) {
      %place = getelementptr ptr, ptr @functions, i32 %n
      %f = load ptr, ptr %place
      %x = call i32 %f()
      ret i32 %x
    }
    """
    module = wasm_module(code_of(text), ("entry",), ModuleMemory(1024, PAGE_BYTES, 1))
    assert run_in_node(module, "console.log([0, 1].map(exports.entry))", tmp_path) == "[ 1, 2 ]"


def test_llvm_reads_modules(tmp_path: Path) -> None:
    reader = shutil.which("llvm-readobj")
    if reader is None:
        pytest.skip("there is no llvm-readobj")
    file = tmp_path / "module.wasm"
    file.write_bytes(wasm_module(code_of(TABLE), ("entry",), ModuleMemory(1024, PAGE_BYTES, 1, {"far": 8})))
    done = subprocess.run([reader, "--sections", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for kind in ("TYPE", "IMPORT", "FUNCTION", "MEMORY", "GLOBAL", "EXPORT", "CODE", "DATA"):
        assert f"Type: {kind} " in done.stdout


def test_what_is_refused() -> None:
    memory = ModuleMemory(1024, PAGE_BYTES, 1)
    with pytest.raises(ToolchainError, match="uses data of another object: far"):
        wasm_module(code_of(TABLE), ("entry",), memory)
    with pytest.raises(ToolchainError, match="has no inner, nothing"):
        wasm_module(code_of(TABLE), ("entry", "inner", "nothing"), ModuleMemory(0, 0, outside={"far": 8}))
    with pytest.raises(ToolchainError, match="4 bytes are not object code for WebAssembly"):
        wasm_module(b"\x7fELF", (), memory)
