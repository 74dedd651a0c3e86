
// A kernel before it is loaded. Arrays of a call are instances of GPUBuffer with the usage STORAGE, by name; `bytes`
// states the size of each, in whole words of four bytes. `features` are the features that the device must have.
class Kernel {
  constructor(code, bytes, functions, constants, features) {
    Object.assign(this, { code, bytes, functions, constants, features });
  }

  // Compile the kernel for a device; `text`, if given, is the code, which is fetched otherwise.
  async load(device, text) {
    for (const feature of this.features)
      if (!device.features.has(feature)) throw new TypeError(`${this.code} needs a device with the feature ${feature}`);
    const code = text ?? (await (await fetch(new URL(this.code, import.meta.url))).text());
    const module = device.createShaderModule({ code });
    const entries = [...new Set(Object.values(this.functions).flat().map((step) => step.entry))];
    const compile = (entryPoint) => device.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint } });
    const pipelines = await Promise.all(entries.map(compile));
    return new LoadedKernel(this, device, Object.fromEntries(entries.map((entry, n) => [entry, pipelines[n]])));
  }
}

class LoadedKernel {
  constructor(kernel, device, pipelines) {
    Object.assign(this, { bytes: kernel.bytes, functions: kernel.functions, device, pipelines, own: {} });
    for (const [name, content] of Object.entries(kernel.constants)) {
      const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
      this.own[`constant ${name}`] = this.#buffer(bytes.length);
      device.queue.writeBuffer(this.own[`constant ${name}`], 0, bytes);
    }
  }

  // Pack operands, once, and return them by the names under which `run` takes them. With an encoder, the work is only
  // recorded in it.
  pack(arrays, encoder) {
    const packed = {};
    const steps = Object.entries(this.functions).flatMap(([name, steps]) => (name === "run" ? [] : steps));
    for (const { parameter, part, bytes } of steps.flatMap((step) => step.arrays))
      if (parameter?.startsWith("packed_")) (packed[parameter] ??= {})[part] ??= this.#buffer(bytes);
    this.#run(steps, { ...arrays, ...packed }, encoder);
    return packed;
  }

  // Compute; arrays of the result are overwritten.
  run(arrays, encoder) {
    this.#run(this.functions.run, arrays, encoder);
  }

  #buffer(size) {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    return this.device.createBuffer({ size: Math.ceil(size / 4) * 4, usage });
  }

  #run(steps, arrays, encoder) {
    const commands = encoder ?? this.device.createCommandEncoder();
    const pass = commands.beginComputePass();
    for (const { entry, groups, arrays: wanted } of steps) {
      const entries = wanted.map((array, binding) => ({ binding, resource: { buffer: this.#found(array, arrays) } }));
      pass.setPipeline(this.pipelines[entry]);
      pass.setBindGroup(0, this.device.createBindGroup({ layout: this.pipelines[entry].getBindGroupLayout(0), entries }));
      pass.dispatchWorkgroups(...groups);
    }
    pass.end();
    if (!encoder) this.device.queue.submit([commands.finish()]);
  }

  // Return the buffer of an argument: of the call, a constant in place of what the call omits, or the kernel's own.
  #found({ parameter, part, bytes, constant }, arrays) {
    const given = arrays[parameter];
    if (given) return parameter.startsWith("packed_") ? given[part] : given;
    if (constant !== undefined) return this.own[`constant ${constant}`];
    if (parameter === "workspace") return (this.own[`workspace ${part}`] ??= this.#buffer(bytes));
    throw new TypeError(`array ${parameter} is missing; the kernel takes ${Object.keys(this.bytes).join(", ")}`);
  }
}
