// Times kernels of WebAssembly and libraries of npm in turns, in Node and in pages of browsers.
// A host has `read`, which returns the contents of a file of a plan, `load`, which returns the exports of such a file,
// and `library`, which loads a library by name.

const ALIKE = 1e-5; // of the largest result: libraries, and kernels without a bound of their own, round sums
const WARMING = 150; // milliseconds: an engine compiles again, and better, what runs often

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int32: Int32Array, int8: Int8Array, uint8: Uint8Array,
  int16: Int16Array, uint16: Uint16Array,
};

/** Returns the elements of bytes of any alignment. */
function elements(bytes, type) {
  const whole = new Uint8Array(bytes);
  return new ARRAYS[type](whole.buffer, 0, whole.length / ARRAYS[type].BYTES_PER_ELEMENT);
}

/** Returns the place of the first element that is not like the right one, in words; empty if there is none. */
function difference(result, expected, most = within(expected, ALIKE)) {
  if (result.length !== expected.length) return `${result.length} elements, not ${expected.length}`;
  const at = expected.findIndex((x, n) => !(Math.abs(x - result[n]) <= most) && !(x !== x && result[n] !== result[n]));
  return at < 0 ? "" : `element ${at} is ${result[at]}, not ${expected[at]}`;
}

/** Returns the error that is a part of the largest result; 0 for integers. */
function within(expected, part) {
  const isReal = expected instanceof Float32Array || expected instanceof Float64Array;
  return isReal ? part * expected.reduce((y, x) => Math.max(y, Math.abs(x)), 0) : 0;
}

/** A kernel on its memory, packed once: its calls as subjects, without copies and with them, and what is wrong. */
async function kernel(plan, read) {
  const image = await read(plan.memory);
  const memory = new WebAssembly.Memory({ initial: Math.ceil(image.length / 65536) });
  new Uint8Array(memory.buffer).set(image);
  const provided = await WebAssembly.instantiate(await read(plan.library), { env: { memory } });
  const env = { ...provided.instance.exports, memory };
  const { instance } = await WebAssembly.instantiate(await read(plan.module), { env });
  instance.exports.__stack_pointer.value = plan.stack;
  const calls = (listed) => listed.map(([name, block, part, parts]) => [instance.exports[name], block, part, parts]);
  for (const [f, block, part, parts] of calls(plan.packs)) f(block, part, parts);
  const steps = calls(plan.steps);
  const call = () => {
    for (const [f, block, part, parts] of steps) f(block, part, parts);
  };
  const view = ({ place, type, elements }) => new ARRAYS[type](memory.buffer, place, elements);
  const source = view(plan.source);
  const given = source.slice();
  const made = plan.results.map(view);
  const kept = made.map((array) => array.slice());
  const copied = () => {
    source.set(given);
    call();
    for (const [n, array] of made.entries()) kept[n].set(array);
    return kept;
  };
  const expected = await Promise.all(plan.results.map(async ({ file, type }) => elements(await read(file), type)));
  const found = copied();
  const wrong = expected.map((array, n) => difference(found[n], array, plan.results[n].error)).find((text) => text) ?? "";
  return { wrong, subjects: { kernel: { call }, copies: { call: copied } } };
}

const PEERS = {
  async "onnxruntime-web"(ort, plan, read, type) {
    const session = await ort.InferenceSession.create(await read(plan.model), { executionProviders: ["wasm"] });
    const feeds = { x: new ort.Tensor(plan.type, elements(await read(plan.src), plan.type), plan.shape) };
    return {
      call: () => session.run(feeds), waits: true, expected: elements(await read(plan.expected), type),
      result: async () => (await session.run(feeds))[plan.output].data, end: () => session.release(),
    };
  },
  async tfjs(tf, plan, read, type) {
    const source = tf.tensor(elements(await read(plan.src), type), plan.shape);
    const weights = tf.tensor(elements(await read(plan.wei), type), plan.weights);
    const convolve = plan.depthwise ? tf.depthwiseConv2d : tf.conv2d;
    const pad = plan.pads ? [[0, 0], ...plan.pads, [0, 0]] : "valid";
    const call = () => convolve(source, weights, plan.stride, pad, "NHWC", plan.dilations);
    return {
      call: () => call().dispose(), result: () => call().dataSync(),
      expected: elements(await read(plan.expected), type), end: () => tf.dispose([source, weights]),
    };
  },
};

/** The fastest loop of multiply-adds, as a subject whose time is that of so many operations. */
async function peak({ module, operations }, read) {
  const { instance } = await WebAssembly.instantiate(await read(module), {});
  const turns = Math.ceil(2e7 / operations);
  return { call: () => instance.exports.loop(turns), operations: operations * turns };
}

async function sample({ call, waits }, count) {
  const start = performance.now();
  if (waits) for (let n = 0; n < count; n++) await call();
  else for (let n = 0; n < count; n++) call();
  return (performance.now() - start) / count;
}

/** Returns how many calls take so long; clocks of pages may be coarse. */
async function countOf(subject, milliseconds) {
  for (let count = 1; ; count *= 4) {
    const took = (await sample(subject, count)) * count;
    if (took >= milliseconds / 4) return Math.max(1, Math.round((count * milliseconds) / took));
  }
}

/** Returns the milliseconds of each subject, one for each round, in which all run in turn for so long. */
async function alternate(subjects, rounds, milliseconds, warming = WARMING) {
  const names = Object.keys(subjects);
  const counts = {};
  for (const name of names) {
    const start = performance.now();
    while (performance.now() - start < warming) await sample(subjects[name], 1);
    counts[name] = await countOf(subjects[name], milliseconds);
  }
  const times = Object.fromEntries(names.map((name) => [name, []]));
  for (let round = 0; round < rounds; round++)
    for (const name of round % 2 ? names.toReversed() : names) times[name].push(await sample(subjects[name], counts[name]));
  return times;
}

/** Returns whether the engine has the instructions of a level, and computes the products that it specifies. */
async function computes(probe) {
  return WebAssembly.validate(probe) && (await WebAssembly.instantiate(probe)).instance.exports.probe() === 1;
}

/** Returns the times of a plan, the reasons why libraries are missing, and what differs in our result. */
export function measure(plan, host) {
  return plan.network ? measureNetwork(plan, host) : measureKernel(plan, host);
}

async function measureKernel(plan, { read, library }) {
  if (!(await computes(await read(plan.probe))))
    return { error: `it does not compute the products of ${plan.level}` };
  const { wrong, subjects } = await kernel(plan, read);
  const missing = {};
  for (const [name, own] of Object.entries(plan.peers))
    try {
      const made = await PEERS[name](await library(name), own, read, plan.results[0].type);
      const differs = difference(await made.result(), made.expected);
      if (differs) throw new Error(`its result differs from the right one: ${differs}`);
      subjects[name] = made;
    } catch (error) {
      missing[name] = String(error.message ?? error);
    }
  if (plan.peak) subjects.peak = await peak(plan.peak, read);
  const times = await alternate(subjects, plan.rounds, plan.milliseconds);
  for (const { end } of Object.values(subjects)) end?.();
  return { times, missing, wrong, operations: subjects.peak?.operations ?? 0 };
}

/** As `measureKernel` does for an exported network of one f32 input, beside onnxruntime-web on the same model. */
async function measureNetwork({ network, rounds, milliseconds, warming }, { read, library, load }) {
  const { loader, model, input, shape, tolerance, isAlone } = network;
  const net = await (await load(loader)).load({ threads: 1 });
  const x = Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, n) => ((n * 7) % 5) - 2);
  const results = net.run({ [input]: x });
  const subjects = { network: { call: () => net.run({ [input]: x }, results) } };
  let wrong = "";
  if (!isAlone) {
    const ort = await library("onnxruntime-web");
    const session = await ort.InferenceSession.create(await read(model), { executionProviders: ["wasm"] });
    const feeds = { [input]: new ort.Tensor("float32", x, shape) };
    const [found] = Object.values(results);
    const [expected] = Object.values(await session.run(feeds));
    wrong = difference(found, expected.data, within(expected.data, tolerance));
    subjects["onnxruntime-web"] = { call: () => session.run(feeds), waits: true, end: () => session.release() };
  }
  const times = await alternate(subjects, rounds, milliseconds, warming);
  for (const { end } of Object.values(subjects)) end?.();
  return { times, wrong };
}
