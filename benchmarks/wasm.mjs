// Times whole networks: our modules and onnxruntime-web in turns, in one process of Node.
// Arguments: the folder of the plan (plan.json and its files), the rounds.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { alternate } from "../convsmith/measure/web_bench.mjs";

const [folder, rounds] = process.argv.slice(2);
const plan = JSON.parse(readFileSync(`${folder}/plan.json`));
const WARMING = 2500; // milliseconds in which a network runs before it is timed
const MILLISECONDS = 5;
const at = plan.packages["onnxruntime-web"];
const ort = at && createRequire(`${at}/package.json`)(at);
if (ort) ort.env.wasm.numThreads = 1;

async function subjects({ loader, onnx, input, elements, shape }) {
  const { load } = await import(loader);
  const net = await load();
  const x = Float32Array.from({ length: elements }, (_, n) => ((n * 7) % 5) - 2);
  const [output] = Object.keys(net.run());
  const found = { network: { call: () => net.run({ [input]: x }), result: () => net.run({ [input]: x })[output] } };
  if (ort) {
    const model = readFileSync(`${folder}/${onnx}`);
    const session = await ort.InferenceSession.create(model, { executionProviders: ["wasm"] });
    const feeds = { [input]: new ort.Tensor("float32", x, shape) };
    const result = async () => (await session.run(feeds))[session.outputNames[0]].data;
    found["onnxruntime-web"] = { call: () => session.run(feeds), waits: true, result, end: () => session.release() };
  }
  return found;
}

const rows = [];
for (const network of plan.networks) {
  const found = await subjects(network);
  let expected;
  for (const [name, { result }] of Object.entries(found)) {
    const own = await result();
    expected ??= own;
    const most = network.tolerance * expected.reduce((y, x) => Math.max(y, Math.abs(x)), 0);
    const wrong = own.findIndex((x, n) => !(Math.abs(x - expected[n]) <= most));
    if (wrong >= 0 || own.length !== expected.length)
      throw new Error(`${network.name}: ${name} differs at ${wrong}: ${own[wrong]}, not ${expected[wrong]}`);
  }
  const times = await alternate(found, Number(rounds), MILLISECONDS, WARMING);
  for (const { end } of Object.values(found)) end?.();
  rows.push({ name: network.name, times });
}
console.log(JSON.stringify(rows));
