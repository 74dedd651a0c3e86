// Runs calls of a module on an image of memory, and writes the memory back.
// Arguments: the module, the library of functions that it may import, the image, the address of the page of numbers.
// With the module alone, it writes the result of its function `probe`.
import { readFileSync, writeFileSync } from "node:fs";
import { setFlagsFromString } from "node:v8";

// A module whose one function multiplies and adds by the relaxed instruction, which old versions have behind a flag.
const RELAXED = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 18, 1, 16, 0, 65, 0, 253, 17, 65, 0, 253, 17,
  65, 0, 253, 17, 253, 133, 2, 11,
]);
if (!WebAssembly.validate(RELAXED)) setFlagsFromString("--experimental-wasm-relaxed-simd");

const [module, library, file, page] = process.argv.slice(2);
if (library === undefined) {
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(readFileSync(module)));
  console.log(exports.probe());
  process.exit();
}
const image = readFileSync(file);
const memory = new WebAssembly.Memory({ initial: Math.ceil(image.length / 65536) });
const bytes = new Uint8Array(memory.buffer);
const words = new BigUint64Array(memory.buffer);
bytes.set(image);

const own = new WebAssembly.Module(readFileSync(module));
const provided = new WebAssembly.Instance(new WebAssembly.Module(readFileSync(library)), { env: { memory } }).exports;
const env = { memory };
for (const { name, kind } of WebAssembly.Module.imports(own))
  if (kind === "function")
    env[name] = provided[name] ?? (() => { throw new Error(`the module calls ${name}`); });

// The rows of the page: the top of the stack, the number of calls, that of results, and the address of both lists.
const [stack, calls, , listed] = words.subarray(Number(page) / 8).subarray(0, 4);
const { exports } = new WebAssembly.Instance(own, { env });
const functions = WebAssembly.Module.exports(own).filter(({ kind }) => kind === "function").map(({ name }) => exports[name]);
exports.__stack_pointer.value = Number(stack);
try {
  for (let n = 0; n < Number(calls); n++) {
    const at = Number(listed) / 8 + 4 * n;
    const [number, block, part, parts] = words.subarray(at, at + 4);
    functions[Number(number)](Number(block), Number(part), Number(parts));
  }
} catch (error) {
  console.log(error.message);
  process.exit(3);
}
writeFileSync(file, bytes.subarray(0, image.length));
