// Draws, classifies the drawing by both engines in turns, and shows answers and times.
import { load, inputs, outputs } from "./net/shapes.js";

const CLASSES = ["circle", "square", "triangle", "cross", "line", "wave"];
const ROUNDS = 9;
const CALLS = 10; // of a round: clocks of pages count tenths of a millisecond
const [INPUT] = Object.keys(inputs);
const [OUTPUT] = Object.keys(outputs);
const SIZE = inputs[INPUT].shape[2];

const canvas = document.getElementById("canvas");
const context = canvas.getContext("2d", { willReadFrequently: true });
Object.assign(context, { lineWidth: 20, lineCap: "round", lineJoin: "round" });

function clear() {
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  for (const part of document.querySelectorAll(".answer, .time, #ratio")) part.textContent = "";
  for (const bar of document.querySelectorAll("dd span")) bar.style.width = 0;
}

/** The drawing as the network takes it: ink is 1, paper is 0. */
function pixels() {
  const small = new OffscreenCanvas(SIZE, SIZE).getContext("2d");
  small.imageSmoothingQuality = "high";
  small.drawImage(canvas, 0, 0, SIZE, SIZE);
  const { data } = small.getImageData(0, 0, SIZE, SIZE);
  return Float32Array.from({ length: SIZE * SIZE }, (_, n) => 1 - data[4 * n] / 255);
}

/** onnxruntime-web on the same model; undefined if the folder lacks it. */
async function peer() {
  const at = new URL("onnxruntime-web/", import.meta.url).href;
  try {
    const ort = await import(`${at}ort.wasm.min.mjs`);
    Object.assign(ort.env.wasm, { numThreads: 1, wasmPaths: at });
    const session = await ort.InferenceSession.create("shapes.onnx", { executionProviders: ["wasm"] });
    const run = async (x) => (await session.run({ [INPUT]: new ort.Tensor("float32", x, inputs[INPUT].shape) }))[OUTPUT].data;
    return { id: "peer", run };
  } catch {
    document.querySelector("#peer .time").textContent = "not here: build.py --npm FOLDER copies it";
    return undefined;
  }
}

function shares(scores) {
  const most = Math.max(...scores);
  const powers = Array.from(scores, (x) => Math.exp(x - most));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((x) => x / sum);
}

function show(id, scores, milliseconds) {
  const own = shares(scores);
  const box = document.getElementById(id);
  box.querySelector(".answer").textContent = CLASSES[own.indexOf(Math.max(...own))];
  box.querySelector(".time").textContent = `${milliseconds.toFixed(2)} ms, median of ${ROUNDS} rounds`;
  box.querySelectorAll("dd span").forEach((bar, n) => (bar.style.width = `${100 * own[n]}%`));
}

const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];

async function classify() {
  const x = pixels();
  const times = Object.fromEntries(engines.map(({ id }) => [id, []]));
  const results = {};
  for (let round = 0; round < ROUNDS; round++)
    for (const { id, run } of engines) {
      const start = performance.now();
      for (let call = 0; call < CALLS; call++) results[id] = await run(x);
      times[id].push((performance.now() - start) / CALLS);
    }
  for (const { id } of engines) show(id, results[id], median(times[id]));
  if (results.peer) {
    const ratio = median(times.peer) / median(times.own);
    document.getElementById("ratio").textContent = `onnxruntime-web takes ${ratio.toFixed(1)} times as long.`;
  }
  return Object.fromEntries(Object.entries(results).map(([id, scores]) => [id, [...scores]]));
}

for (const list of document.querySelectorAll("dl"))
  for (const name of CLASSES) {
    const term = Object.assign(document.createElement("dt"), { textContent: name });
    const bar = document.createElement("dd");
    bar.append(document.createElement("span"));
    list.append(term, bar);
  }
clear();
const net = await load({ threads: 1 });
const engines = [{ id: "own", run: (x) => net.run({ [INPUT]: x })[OUTPUT] }, await peer()].filter(Boolean);

function place({ offsetX, offsetY }) {
  const scale = canvas.width / canvas.clientWidth;
  return [offsetX * scale, offsetY * scale];
}
let isDrawing = false;
canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  isDrawing = true;
  context.beginPath();
  context.moveTo(...place(event));
});
canvas.addEventListener("pointermove", (event) => {
  if (!isDrawing) return;
  context.lineTo(...place(event));
  context.stroke();
});
canvas.addEventListener("pointerup", () => {
  isDrawing = false;
  classify();
});
document.getElementById("clear").addEventListener("click", clear);
window.gallery = { classify, pixels, context, clear };
