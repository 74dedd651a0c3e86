// Reads plans, one a line of standard input (the path of a folder), and writes what was measured, one a line.
// Argument: the folders of packages by name, as JSON.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { setFlagsFromString } from "node:v8";
import { measure } from "./web_bench.mjs";

const folders = JSON.parse(process.argv[2]); // of packages, by name
const loaded = {};
const LIBRARIES = {
  "onnxruntime-web"() {
    const folder = folders["onnxruntime-web"];
    const ort = createRequire(`${folder}/package.json`)(folder);
    ort.env.wasm.numThreads = 1;
    return ort;
  },
  async tfjs() {
    const folder = folders["@tensorflow/tfjs-backend-wasm"];
    const require = createRequire(`${folder}/package.json`);
    const tf = require("@tensorflow/tfjs-core");
    const wasm = require(folder);
    wasm.setWasmPaths(`${dirname(require.resolve(folder))}/`);
    tf.env().set("WASM_HAS_MULTITHREAD_SUPPORT", false);
    await tf.setBackend("wasm");
    await tf.ready();
    return tf;
  },
};
const library = (name) => (loaded[name] ??= LIBRARIES[name]());

process.stdout.write(`${JSON.stringify({ engine: `Node ${process.version}, V8 ${process.versions.v8}` })}\n`);
let isPrepared = false;
for await (const folder of createInterface({ input: process.stdin })) {
  const read = (file) => readFileSync(`${folder}/${file}`);
  const plan = JSON.parse(read("plan.json"));
  if (!isPrepared && plan.probe && !WebAssembly.validate(read(plan.probe)))
    setFlagsFromString("--experimental-wasm-relaxed-simd");
  isPrepared = true;
  let found;
  try {
    found = await measure(plan, { read, library, load: (file) => import(pathToFileURL(`${folder}/${file}`)) });
  } catch (error) {
    found = { error: String(error.stack ?? error) };
  }
  process.stdout.write(`${JSON.stringify(found)}\n`);
}
