"""The C of CUDA's driver."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from convsmith.codegen.artifact import Launch
from convsmith.exporter.device_build import ArgumentPlace, DeviceKernel
from convsmith.exporter.driver import Driver, bytes_text
from convsmith.exporter.interface import EntryUse, Parameter
from convsmith.runtime.cuda import GENERATIONS
from convsmith.runtime.device_library import ALIGNMENT
from convsmith.runtime.tensor_maps import MapEncoding, encoding_of

__all__ = ["CudaDriver"]

_ENCODED = """\
#ifndef CONVSMITH_ENCODED
#define CONVSMITH_ENCODED
/* The driver writes a tensor map to an address that is a multiple of 64, which C99 does not align a CUtensorMap to. */
static inline CUtensorMap *convsmith_aligned(unsigned char room[192])
{
    return (CUtensorMap *)(void *)(room + (64 - (uintptr_t)room % 64) % 64);
}
#endif
"""


class CudaDriver(Driver):
    """The C of CUDA's driver."""

    library = "CUDA's driver (cuda.h, -lcuda) and nothing else"
    context = "context of CUDA"
    status, success = "CUresult", "CUDA_SUCCESS"
    memory, map = "CUdeviceptr", "CUtensorMap"
    queue, queue_name = "CUstream stream", "stream"
    head = ("#include <cuda.h>",)
    link = "-lcuda"
    loaded_from = ("const void *code",)
    of_load = "The context must be current in the calling thread, here and in each call."
    of_arrays = (
        f"Arrays are in the device's memory, at addresses that are multiples of {ALIGNMENT}. The call is queued on "
        "`stream` and waits for nothing."
    )
    load_arguments = "code"
    wait = "cuStreamSynchronize(stream)"

    def needed(self, kernel: DeviceKernel) -> str:
        (major, minor), only = GENERATIONS[kernel.machine.name]
        later = "only" if only else "or later"
        return f"The GPU must have compute capability {major}.{minor} {later}."

    def helpers(self, kernels: Sequence[DeviceKernel]) -> Iterator[str]:
        if any(use.entry.launch.maps for kernel in kernels for use in kernel.uses):
            yield _ENCODED

    def members(self, kernel: DeviceKernel) -> Iterator[str]:
        yield "CUmodule module;"
        yield f"CUfunction entries[{len(kernel.uses)}];"
        if kernel.constants:
            yield f"CUdeviceptr constants[{len(kernel.constants)}];"

    def load(self, kernel: DeviceKernel) -> list[str]:
        entries = [use.entry for use in kernel.uses]
        names = ", ".join(f'"{entry.symbol}"' for entry in entries)
        shared = ", ".join(str(entry.launch.shared) for entry in entries)
        lines = [f"static const char *const names[] = {{{names}}};", f"static const int shared[] = {{{shared}}};"]
        for n, contents in enumerate(kernel.constants.values()):
            lines += [f"static const unsigned char constant{n}[] = {{", *bytes_text(contents), "};"]
        lines += [
            "CUresult status;", "memset(m, 0, sizeof *m);", "status = cuModuleLoadData(&m->module, code);",
            f"for (int n = 0; n < {len(entries)} && status == CUDA_SUCCESS; n++) {{",
            "    status = cuModuleGetFunction(&m->entries[n], m->module, names[n]);",
            "    if (status == CUDA_SUCCESS)",
            "        status = cuFuncSetAttribute(",
            "            m->entries[n], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared[n]);",
            "}",
        ]  # fmt: skip
        for n in range(len(kernel.constants)):
            lines += [
                "if (status == CUDA_SUCCESS)",
                f"    status = cuMemAlloc(&m->constants[{n}], sizeof constant{n});",
                "if (status == CUDA_SUCCESS)",
                f"    status = cuMemcpyHtoD(m->constants[{n}], constant{n}, sizeof constant{n});",
            ]  # fmt: skip
        if kernel.constants:  # a kernel on another stream than the default one does not wait for them
            lines += ["if (status == CUDA_SUCCESS)", "    status = cuStreamSynchronize(NULL);"]
        return [*lines, "if (status != CUDA_SUCCESS)", f"    (void){kernel.unload}(m);", "return status;"]

    def unload(self, kernel: DeviceKernel) -> list[str]:
        lines = ["CUresult status = CUDA_SUCCESS;"]
        if kernel.constants:
            lines += [
                f"for (int n = 0; n < {len(kernel.constants)}; n++)", "    if (m->constants[n] != 0)",
                "        (void)cuMemFree(m->constants[n]);",
            ]  # fmt: skip
        return [
            *lines, "if (m->module != NULL)", "    status = cuModuleUnload(m->module);", "memset(m, 0, sizeof *m);",
            "return status;",
        ]  # fmt: skip

    def maps(self, kernel: DeviceKernel, uses: Sequence[EntryUse], maps: str) -> Iterator[str]:
        n = 0
        for use in uses:
            for made in use.entry.launch.maps:
                (of,) = (a for a in use.entry.arguments if a.name == made.of)
                text = _address(kernel.place(of, use))
                yield f"if (status == CUDA_SUCCESS) {{ /* {made.of} */"
                yield from (f"    {line}" for line in _encoded(encoding_of(made), text, f"{maps}[{n}]"))
                yield "}"
                n += 1

    def checked(self, parameters: Sequence[Parameter]) -> Iterator[str]:
        whole = " | ".join(p.name for p in parameters)
        absent = "".join(f" || {p.name} == 0" for p in parameters if not p.is_optional)
        yield f"if (({whole}) % {ALIGNMENT} != 0{absent})"
        yield "    return CUDA_ERROR_INVALID_VALUE;"

    def launch(
        self, n: int, launch: Launch, places: Sequence[ArgumentPlace], optional: Collection[str], maps: str, first: int
    ) -> Iterator[str]:
        for i, place in enumerate(places):
            yield f"CUdeviceptr a{i} = {_address(place, optional)};"
        arguments = [f"&a{i}" for i in range(len(places))]
        arguments += [f"(void *)&{maps}[{first + i}]" for i in range(len(launch.maps))]
        yield f"void *arguments[] = {{{', '.join(arguments)}}};"
        yield "status = cuLaunchKernel("
        sizes = ", ".join(map(str, (*launch.grid, *launch.group, launch.shared)))
        yield f"    m->entries[{n}], {sizes}, stream, arguments, NULL);"

    # -- the example
    def opened(self) -> tuple[Sequence[str], Sequence[str]]:
        return ("static CUstream stream;",), (
            "CUdevice device;", "CUcontext context;", "check(cuInit(0));", "check(cuDeviceGet(&device, 0));",
            "check(cuDevicePrimaryCtxRetain(&context, device));", "check(cuCtxSetCurrent(context));",
            "check(cuStreamCreate(&stream, CU_STREAM_DEFAULT));",
        )  # fmt: skip

    def name_of_error(self) -> Sequence[str]:
        return (
            "const char *text = NULL;", "(void)cuGetErrorName(status, &text);",
            'return text == NULL ? "an unknown status" : text;',
        )  # fmt: skip

    def reserve(self, name: str, nbytes: str) -> str:
        return f"CUdeviceptr {name};\n    check(cuMemAlloc(&{name}, {nbytes}));"

    def write(self, name: str, source: str, nbytes: str) -> str:
        return f"cuMemcpyHtoD({name}, {source}, {nbytes})"

    def read(self, name: str, target: str, nbytes: str) -> str:
        return f"cuMemcpyDtoH({target}, {name}, {nbytes})"

    def free(self, name: str) -> str:
        return f"cuMemFree({name})"


def _address(place: ArgumentPlace, optional: Collection[str] = ()) -> str:
    """Return the expression for the address of an array."""
    text = f"{place.parameter} + {place.offset}" if place.offset else place.parameter
    if place.constant is None:
        return text
    constant = f"m->constants[{place.constant}]"
    return f"{text} == 0 ? {constant} : {text}" if place.parameter in optional else text or constant


def _encoded(e: MapEncoding, address: str, place: str) -> Iterator[str]:
    """Yield the lines that make a tensor map of the array at an address."""

    def row(type_: str, name: str, values: Sequence[int]) -> str:
        return f"static const {type_} {name}[] = {{{', '.join(map(str, values))}}};"

    yield "unsigned char room[192];"
    yield row("cuuint64_t", "sizes", e.sizes)
    if e.steps:
        yield row("cuuint64_t", "steps", e.steps)
    yield row("cuuint32_t", "apart", e.element_steps)
    if e.pixels:
        yield row("int", "lower", e.lower)
        yield row("int", "upper", e.upper)
        part = f"lower, upper, {e.channels}, {e.pixels}"
    else:
        yield row("cuuint32_t", "box", e.box)
        part = "box"
    yield f"status = {e.function}("
    steps = "steps" if e.steps else "NULL"
    yield f"    convsmith_aligned(room), {e.type}, {len(e.sizes)}, (void *)(uintptr_t)({address}), sizes, {steps},"
    yield f"    {part}, apart, {', '.join(e.form[:2])},"
    yield f"    {', '.join(e.form[2:])});"
    yield f"memcpy(&{place}, convsmith_aligned(room), sizeof(CUtensorMap));"
