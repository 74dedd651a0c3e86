"""The C of OpenCL."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from convsmith.codegen.artifact import Launch, build_options
from convsmith.exporter.device_build import ArgumentPlace, DeviceKernel
from convsmith.exporter.driver import Driver, bytes_text
from convsmith.exporter.interface import Parameter

__all__ = ["OpenClDriver"]

_PART = """\
#ifndef CONVSMITH_PART
#define CONVSMITH_PART
/* Sets an argument of an entry to a part of an array. The entry keeps the part until it has run. */
static inline cl_int convsmith_part(cl_kernel entry, cl_uint n, cl_mem whole, size_t offset, size_t bytes, cl_mem *part)
{
    cl_int status;
    cl_buffer_region region;
    region.origin = offset;
    region.size = bytes;
    *part = clCreateSubBuffer(whole, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &status);
    return status == CL_SUCCESS ? clSetKernelArg(entry, n, sizeof(cl_mem), part) : status;
}
#endif
"""


class OpenClDriver(Driver):
    """The C of OpenCL 2.1 or later."""

    library = "OpenCL 2.1 (CL/cl.h, -lOpenCL) and nothing else"
    context = "context of OpenCL"
    status, success = "cl_int", "CL_SUCCESS"
    memory = "cl_mem"
    queue, queue_name = "cl_command_queue queue", "queue"
    head = (
        "#ifndef CL_TARGET_OPENCL_VERSION", "#define CL_TARGET_OPENCL_VERSION 210", "#endif", "#include <CL/cl.h>"
    )  # fmt: skip
    link = "-lOpenCL"
    loaded_from = ("cl_context context", "cl_device_id device", "const void *code", "size_t bytes")
    of_load = "The entries hold the arguments of one launch, so only one thread at a time may use a loaded module."
    of_arrays = "The call is queued on `queue` and waits for nothing."
    load_arguments = "context, device, code, bytes"
    wait = "clFinish(queue)"
    null = "NULL"

    def needed(self, kernel: DeviceKernel) -> str:
        needs = kernel.interface.artifact.needs
        return f"The device must take SPIR-V{''.join(f', and have {name}' for name in needs)}."

    def helpers(self, kernels: Sequence[DeviceKernel]) -> Iterator[str]:
        if any(kernel.place(a, use).is_part for kernel in kernels for use in kernel.uses for a in use.entry.arguments):
            yield _PART

    def members(self, kernel: DeviceKernel) -> Iterator[str]:
        yield "cl_program program;"
        yield f"cl_kernel entries[{len(kernel.uses)}];"
        if kernel.constants:
            yield f"cl_mem constants[{len(kernel.constants)}];"

    def load(self, kernel: DeviceKernel) -> list[str]:
        names = ", ".join(f'"{use.entry.symbol}"' for use in kernel.uses)
        words = build_options(use.entry.launch for use in kernel.uses)
        options = f'"{" ".join(words)}"' if words else "NULL"
        lines = [f"static const char *const names[] = {{{names}}};"]
        for n, contents in enumerate(kernel.constants.values()):
            lines += [f"static const unsigned char constant{n}[] = {{", *bytes_text(contents), "};"]
        lines += [
            "cl_int status;", "memset(m, 0, sizeof *m);",
            "m->program = clCreateProgramWithIL(context, code, bytes, &status);", "if (status == CL_SUCCESS)",
            f"    status = clBuildProgram(m->program, 1, &device, {options}, NULL, NULL);",
            f"for (int n = 0; n < {len(kernel.uses)} && status == CL_SUCCESS; n++)",
            "    m->entries[n] = clCreateKernel(m->program, names[n], &status);",
        ]  # fmt: skip
        for n in range(len(kernel.constants)):
            lines += [
                "if (status == CL_SUCCESS)",
                f"    m->constants[{n}] = clCreateBuffer(",
                f"        context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, sizeof constant{n}, (void *)constant{n}, "
                "&status);",
            ]  # fmt: skip
        return [*lines, "if (status != CL_SUCCESS)", f"    (void){kernel.unload}(m);", "return status;"]

    def unload(self, kernel: DeviceKernel) -> list[str]:
        lines = ["cl_int status = CL_SUCCESS;"]
        if kernel.constants:
            lines += [
                f"for (int n = 0; n < {len(kernel.constants)}; n++)", "    if (m->constants[n] != NULL)",
                "        (void)clReleaseMemObject(m->constants[n]);",
            ]  # fmt: skip
        return [
            *lines, f"for (int n = 0; n < {len(kernel.uses)}; n++)", "    if (m->entries[n] != NULL)",
            "        (void)clReleaseKernel(m->entries[n]);", "if (m->program != NULL)",
            "    status = clReleaseProgram(m->program);", "memset(m, 0, sizeof *m);", "return status;",
        ]  # fmt: skip

    def checked(self, parameters: Sequence[Parameter]) -> Iterator[str]:
        yield f"if ({' || '.join(f'{p.name} == NULL' for p in parameters if not p.is_optional)})"
        yield "    return CL_INVALID_MEM_OBJECT;"

    def launch(
        self, n: int, launch: Launch, places: Sequence[ArgumentPlace], optional: Collection[str], maps: str, first: int
    ) -> Iterator[str]:
        threads = ", ".join(str(groups * size) for groups, size in zip(launch.grid, launch.group))
        yield f"static const size_t threads[] = {{{threads}}}, group[] = {{{', '.join(map(str, launch.group))}}};"
        parts = [i for i, place in enumerate(places) if place.is_part]
        if parts:
            yield f"cl_mem parts[{len(parts)}] = {{{', '.join('NULL' for _ in parts)}}};"
        for i, place in enumerate(places):
            if i not in parts:
                yield f"cl_mem a{i} = {_array(place, optional)};"
        for i, place in enumerate(places):
            yield "if (status == CL_SUCCESS)"
            if i in parts:
                part = f"{place.parameter}, {place.offset}, {place.nbytes}, &parts[{parts.index(i)}]"
                yield f"    status = convsmith_part(m->entries[{n}], {i}, {part});"
            else:
                yield f"    status = clSetKernelArg(m->entries[{n}], {i}, sizeof(cl_mem), &a{i});"
        yield "if (status == CL_SUCCESS)"
        yield f"    status = clEnqueueNDRangeKernel(queue, m->entries[{n}], 3, NULL, threads, group, 0, NULL, NULL);"
        for i in range(len(parts)):
            yield f"if (parts[{i}] != NULL)"
            yield f"    (void)clReleaseMemObject(parts[{i}]);"

    # -- the example
    def opened(self) -> tuple[Sequence[str], Sequence[str]]:
        return (
            ("static cl_context context;", "static cl_device_id device;", "static cl_command_queue queue;",
             "static cl_int status;"),
            ("cl_platform_id platforms[16];", "cl_uint count = 0;", 'char taken[256] = "";',
             "check(clGetPlatformIDs(16, platforms, &count));", "status = CL_DEVICE_NOT_FOUND;",
             "/* The first device that takes SPIR-V. */",
             'for (cl_uint n = 0; n < count && n < 16 && strstr(taken, "SPIR-V") == NULL; n++) {',
             "    status = clGetDeviceIDs(platforms[n], CL_DEVICE_TYPE_ALL, 1, &device, NULL);",
             "    if (status == CL_SUCCESS)",
             "        (void)clGetDeviceInfo(device, CL_DEVICE_IL_VERSION, sizeof taken - 1, taken, NULL);", "}",
             "check(status);",
             "context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);", "check(status);",
             "queue = clCreateCommandQueueWithProperties(context, device, NULL, &status);", "check(status);"),
        )  # fmt: skip

    def name_of_error(self) -> Sequence[str]:
        return (
            "static char text[32];", '(void)snprintf(text, sizeof text, "status %d of OpenCL", (int)status);',
            "return text;",
        )  # fmt: skip

    def reserve(self, name: str, nbytes: str) -> str:
        return (
            f"cl_mem {name} = clCreateBuffer(context, CL_MEM_READ_WRITE, {nbytes}, NULL, &status);\n"
            "    check(status);"
        )  # fmt: skip

    def write(self, name: str, source: str, nbytes: str) -> str:
        return f"clEnqueueWriteBuffer(queue, {name}, CL_TRUE, 0, {nbytes}, {source}, 0, NULL, NULL)"

    def read(self, name: str, target: str, nbytes: str) -> str:
        return f"clEnqueueReadBuffer(queue, {name}, CL_TRUE, 0, {nbytes}, {target}, 0, NULL, NULL)"

    def free(self, name: str) -> str:
        return f"clReleaseMemObject({name})"


def _array(place: ArgumentPlace, optional: Collection[str]) -> str:
    """Return the expression for a whole array."""
    if place.constant is None:
        return place.parameter
    constant = f"m->constants[{place.constant}]"
    text = place.parameter
    return f"{text} == NULL ? {constant} : {text}" if text in optional else text or constant
