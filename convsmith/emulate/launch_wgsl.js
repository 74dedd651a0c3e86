// Runs an entry point of a module of WGSL on an adapter of WebGPU, and returns the contents of the arrays that it
// writes. Arrays are base64. The last argument, which WebDriver adds, receives the result.
const [code, symbol, groups, arrays, written] = arguments;
const done = arguments[arguments.length - 1];

const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const textOf = (bytes) => {
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768)
    text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return btoa(text);
};

async function opened() {
  if (globalThis.device === undefined) {
    const adapter = navigator.gpu && (await navigator.gpu.requestAdapter());
    if (!adapter) throw new Error("the browser has no adapter of WebGPU");
    const size = adapter.limits.maxStorageBufferBindingSize;
    const requiredFeatures = ["subgroups"].filter((feature) => adapter.features.has(feature));
    const requiredLimits = { maxStorageBufferBindingSize: size };
    globalThis.device = await adapter.requestDevice({ requiredFeatures, requiredLimits });
  }
  return globalThis.device;
}

async function run() {
  const device = await opened();
  for (const kind of ["validation", "out-of-memory", "internal"]) device.pushErrorScope(kind);
  const module = device.createShaderModule({ code });
  const { messages } = await module.getCompilationInfo();
  const faults = messages.filter((m) => m.type === "error").map((m) => `line ${m.lineNum}: ${m.message}`);
  let results = [];
  if (!faults.length) {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const buffers = arrays.map((text) => {
      const bytes = bytesOf(text);
      const buffer = device.createBuffer({ size: bytes.length, usage });
      device.queue.writeBuffer(buffer, 0, bytes);
      return buffer;
    });
    const pipeline = device.createComputePipeline({ layout: "auto", compute: { module, entryPoint: symbol } });
    // An array that the entry point does not use has no binding.
    const used = buffers.map((buffer, binding) => ({ binding, resource: { buffer } }));
    const commands = device.createCommandEncoder();
    const pass = commands.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries: used }));
    pass.dispatchWorkgroups(...groups);
    pass.end();
    const copies = written.map((n) => {
      const copy = device.createBuffer({ size: buffers[n].size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
      commands.copyBufferToBuffer(buffers[n], 0, copy, 0, buffers[n].size);
      return copy;
    });
    device.queue.submit([commands.finish()]);
    for (let kind = 0; kind < 3; kind++) {
      const error = await device.popErrorScope();
      if (error) faults.push(error.message);
    }
    if (!faults.length)
      for (const copy of copies) {
        await copy.mapAsync(GPUMapMode.READ);
        results.push(textOf(new Uint8Array(copy.getMappedRange())));
        copy.destroy();
      }
    for (const buffer of buffers) buffer.destroy();
  } else for (let kind = 0; kind < 3; kind++) await device.popErrorScope();
  return { faults, results };
}

run().then(done, (error) => done({ lacks: String(error.message || error) }));
