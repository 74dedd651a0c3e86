// Times convolutions in WebAssembly: our modules, onnxruntime-web and tfjs-backend-wasm in turns, in one process.
// Arguments: the folder of the plan (plan.json and its files), the folder whose node_modules has the peers, the rounds.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setFlagsFromString } from "node:v8";

const [folder, npm, rounds] = process.argv.slice(2);
const plan = JSON.parse(readFileSync(`${folder}/plan.json`));
const file = (name) => readFileSync(`${folder}/${name}`);
const floats = (name) => {
  const held = file(name);
  return new Float32Array(held.buffer, held.byteOffset, held.length / 4);
};
if (!WebAssembly.validate(file("probe.wasm"))) setFlagsFromString("--experimental-wasm-relaxed-simd");

const require = createRequire(`${npm}/package.json`);
const version = (name) => JSON.parse(readFileSync(require.resolve(name).replace(/(node_modules\/(@[^/]+\/)?[^/]+)\/.*/, "$1/package.json"))).version;
const peers = { versions: {} };
if (plan.vs.includes("onnxruntime-web")) {
  peers.ort = require("onnxruntime-web");
  peers.ort.env.wasm.numThreads = 1;
  peers.versions["onnxruntime-web"] = version("onnxruntime-web");
}
if (plan.vs.includes("tfjs")) {
  peers.tf = require("@tensorflow/tfjs-core");
  const wasm = require("@tensorflow/tfjs-backend-wasm");
  wasm.setWasmPaths(require.resolve("@tensorflow/tfjs-backend-wasm").replace(/[^/]*$/, ""));
  peers.tf.env().set("WASM_HAS_MULTITHREAD_SUPPORT", false);
  await peers.tf.setBackend("wasm");
  await peers.tf.ready();
  peers.versions["tfjs-backend-wasm"] = version("@tensorflow/tfjs-backend-wasm");
}

const START = 1 << 20;
const WARMING = 2500; // milliseconds in which a whole network runs before it is timed
const TOLERANCE = 1e-5; // of the largest result: Winograd's transforms are not exact

// Our kernel: memory for each argument by name, packing once, and a call that runs the steps.
class Kernel {
  constructor(layer, target) {
    const { module, packs, steps, sizes } = layer.kernels[target];
    this.memory = new WebAssembly.Memory({ initial: Math.ceil((START + sizes.total) / 65536) });
    const env = { memory: this.memory, fmaf: (a, b, c) => Math.fround(a * b + c) };
    this.exports = new WebAssembly.Instance(new WebAssembly.Module(file(module)), { env }).exports;
    this.src = this.view(START + sizes.places.src, layer.src.elements);
    this.dst = this.view(START + sizes.places.dst, layer.dst.elements);
    this.view(START + sizes.places.wei, layer.wei.elements).set(floats(layer.wei.file));
    this.src.set(floats(layer.src.file));
    for (const step of packs) this.bound(step)();
    this.steps = steps.map((step) => this.bound(step));
  }
  view(at, elements) {
    return new Float32Array(this.memory.buffer, at, elements);
  }
  bound({ symbol, block, words }) {
    new Uint32Array(this.memory.buffer, START + block, words.length).set(words.map((x) => START + x));
    const f = this.exports[symbol];
    return () => f(START + block, 0, 1);
  }
  call() {
    for (const step of this.steps) step();
  }
}

async function subjects(layer) {
  const found = {};
  const x = floats(layer.src.file);
  for (const target of Object.keys(layer.kernels)) {
    const kernel = new Kernel(layer, target);
    const result = () => (kernel.call(), kernel.dst.slice());
    found[target] = { call: () => kernel.call(), result };
    found[`${target} with copies`] = {
      call: () => {
        kernel.src.set(x);
        return result();
      },
    };
  }
  if (peers.tf) {
    const { tf } = peers;
    const source = tf.tensor4d(x, layer.src.shape);
    const weights = tf.tensor4d(floats(layer.tf.file), layer.tf.shape);
    const pad = layer.pads.length ? [[0, 0], ...layer.pads, [0, 0]] : "valid";
    const convolve = layer.tf.depthwise ? tf.depthwiseConv2d : tf.conv2d;
    const call = () => convolve(source, weights, layer.stride, pad);
    found.tfjs = {
      call: () => call().dispose(),
      result: () => call().dataSync(),
      end: () => tf.dispose([source, weights]),
    };
  }
  if (peers.ort) {
    const session = await peers.ort.InferenceSession.create(file(layer.onnx.file), { executionProviders: ["wasm"] });
    const feeds = { x: new peers.ort.Tensor("float32", floats(layer.onnx.src), layer.onnx.shape) };
    found["onnxruntime-web"] = {
      call: () => session.run(feeds),
      waits: true,
      result: async () => channelsLast((await session.run(feeds)).y.data, layer.dst.shape),
      end: () => session.release(),
    };
  }
  return found;
}

function channelsLast(data, [, h, w, c]) {
  const made = new Float32Array(data.length);
  for (let k = 0; k < c; k++) for (let p = 0; p < h * w; p++) made[p * c + k] = data[k * h * w + p];
  return made;
}

async function sample({ call, waits }, count) {
  const start = performance.now();
  if (waits) for (let n = 0; n < count; n++) await call();
  else for (let n = 0; n < count; n++) call();
  return (performance.now() - start) / count;
}

async function network({ name, loader, onnx, input, elements, shape }) {
  const { load } = await import(loader);
  const net = await load();
  const x = Float32Array.from({ length: elements }, (_, n) => ((n * 7) % 5) - 2);
  const first = ({ [Object.keys(net.run())[0]]: y }) => y;
  const found = { network: { call: () => net.run({ [input]: x }), result: () => first(net.run({ [input]: x })) } };
  if (peers.ort) {
    const session = await peers.ort.InferenceSession.create(file(onnx), { executionProviders: ["wasm"] });
    const feeds = { [input]: new peers.ort.Tensor("float32", x, shape) };
    const result = async () => (await session.run(feeds))[session.outputNames[0]].data;
    found["onnxruntime-web"] = { call: () => session.run(feeds), waits: true, result, end: () => session.release() };
  }
  return found;
}

const rows = [];
for (const layer of [...plan.layers, ...plan.networks]) {
  const found = await (layer.loader ? network(layer) : subjects(layer));
  const names = Object.keys(found);
  let expected;
  for (const name of names) {
    if (!found[name].result) continue;
    const result = await found[name].result();
    expected ??= result;
    const most = TOLERANCE * expected.reduce((y, x) => Math.max(y, Math.abs(x)), 0);
    const wrong = result.findIndex((x, n) => !(Math.abs(x - expected[n]) <= most));
    if (wrong >= 0 || result.length !== expected.length) throw new Error(`${layer.name}: ${name} differs at ${wrong}: ${result[wrong]}, not ${expected[wrong]}`);
  }
  const counts = {};
  for (const name of names) {
    const start = performance.now(); // an engine compiles again, and better, what runs often
    const warming = layer.loader ? WARMING : 20 * plan.milliseconds;
    while (performance.now() - start < warming) await sample(found[name], 1);
    counts[name] = Math.max(1, Math.round(plan.milliseconds / (await sample(found[name], 3))));
  }
  const times = Object.fromEntries(names.map((name) => [name, []]));
  for (let round = 0; round < Number(rounds); round++)
    for (const name of names) times[name].push(await sample(found[name], counts[name]));
  for (const name of names) found[name].end?.();
  rows.push({ name: layer.name, times });
  console.error(layer.name, ...names.map((name) => `${name} ${Math.min(...times[name]).toFixed(3)}`));
}

const peaks = {};
for (const [target, { module, flops }] of Object.entries(plan.peaks)) {
  const { loop } = new WebAssembly.Instance(new WebAssembly.Module(file(module)), { env: {} }).exports;
  loop(1000);
  let best = Infinity;
  for (let n = 0; n < 15; n++) {
    const start = performance.now();
    loop(1e6);
    best = Math.min(best, performance.now() - start);
  }
  peaks[target] = (flops * 1e6) / best / 1e6;
}
console.log(JSON.stringify({ rows, peaks, versions: { node: process.version, v8: process.versions.v8, ...peers.versions } }));
