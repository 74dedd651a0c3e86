"""The launch header of a library for a device: C99 that loads, packs and runs its kernels through the driver.

    NAME_load(module, ..., code)                      loads the code from memory
    NAME_tensor_maps(maps, arrays...)                 makes the tensor maps of a call's arrays, if the kernel takes some
    NAME_pack(module, tensors..., packed, queue)      packs an operand
    NAME(module, maps, tensors..., workspace, queue)  runs the kernel
    NAME_unload(module)                               frees what NAME_load has made

Each function returns the driver's status.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convsmith.exporter.device_build import DeviceKernel
from convsmith.exporter.driver import Driver
from convsmith.exporter.drivers import driver_of
from convsmith.exporter.header import INTEGERS, about_lines, comment, framed, prototype, size_macros, tensor_text
from convsmith.exporter.interface import EntryUse, Interface, PackingFunction, Parameter
from convsmith.frontend.public import public

__all__ = ["device_header_text"]


def device_header_text(name: str, kernels: Sequence[DeviceKernel]) -> str:
    """Return the launch header of the library ``name``."""
    driver = driver_of(kernels[0].machine)
    about = (
        f"launches of kernels compiled by convsmith {public('__version__')}, in C99. The functions call "
        f"{driver.library}, and return its status."
    )
    parts = [*driver.helpers(kernels)]
    for kernel in kernels:
        parts += [*_kernel_lines(kernel, driver), ""]
    return framed(name, about, (*driver.head, *INTEGERS, "#include <string.h>"), parts)


def _kernel_lines(kernel: DeviceKernel, driver: Driver) -> Iterator[str]:
    module = f"{kernel.name}_module"
    yield from comment(*about_lines(kernel), driver.needed(kernel))
    yield from size_macros(kernel)
    yield ""
    yield from comment(f"The code of {kernel.name} in a {driver.context}; the members belong to the functions below.")
    yield f"typedef struct {module} {{"
    yield from (f"    {line}" for line in driver.members(kernel))
    yield f"}} {module};"
    yield ""
    yield from comment(f"Frees what {kernel.load} has made.")
    yield from _function(driver, kernel.unload, [f"{module} *m"], driver.unload(kernel))
    files = " or ".join(f"{kernel.name}{end}" for end in kernel.code)
    yield from comment(f"Loads the contents of {files}. {driver.of_load}")
    yield from _function(driver, kernel.load, [f"{module} *m", *driver.loaded_from], driver.load(kernel))
    if kernel.has_maps:
        yield from _maps(kernel, driver)
    for made, first in kernel.functions:
        yield from _run(kernel, made, first, driver)


def _function(driver: Driver, name: str, parameters: Sequence[str], body: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a function of the header."""
    yield prototype(f"static inline {driver.status} {name}", parameters).removesuffix(";")
    yield "{"
    yield from (f"    {line}" for line in body)
    yield "}"
    yield ""


def _maps(kernel: DeviceKernel, driver: Driver) -> Iterator[str]:
    """Yield the type of the maps of a call, and the function that makes them."""
    type_, interface = f"{kernel.name}_maps", kernel.interface
    count = sum(len(use.entry.launch.maps) for use in interface.uses)
    yield from comment(
        "The tensor maps of a call, from which the copy engine reads: they hold the arrays' addresses, and may be kept "
        "as long as these do not change."
    )
    yield f"typedef struct {type_} {{"
    yield f"    {driver.map} maps[{count}];"
    yield f"}} {type_};"
    yield ""
    body = [f"{driver.status} status = {driver.success};", *driver.maps(kernel, interface.uses, "made->maps")]
    yield from _function(
        driver, kernel.make_maps, [f"{type_} *made", *map(driver.declared, kernel.mapped)], [*body, "return status;"]
    )


def _run(kernel: DeviceKernel, made: Interface | PackingFunction, first: int, driver: Driver) -> Iterator[str]:
    """Yield a function that runs entries, of which the ``first`` has that number in the module."""
    read = [f"{p.name}: {tensor_text(p)}." for p in made.parameters]
    parameters = [f"const {kernel.name}_module *m", *map(driver.declared, made.parameters), driver.queue]
    begin = [f"{driver.status} status = {driver.success};", *driver.checked(made.parameters)]
    if isinstance(made, PackingFunction):
        name, maps = made.symbol, "maps"
        yield from comment(f"Packs {made.operand} once, for any number of calls.", *read, driver.of_arrays)
        if count := sum(len(use.entry.launch.maps) for use in made.uses):
            begin = [f"{driver.map} maps[{count}];", *begin, *driver.maps(kernel, made.uses, maps)]
    else:
        name, maps = kernel.name, "made->maps"
        own = ["Calls at the same time need a workspace each; its content does not matter."] if made.workspace else []
        yield from comment("The kernel.", *read, driver.of_arrays, *own)
        if kernel.has_maps:
            parameters.insert(1, f"const {kernel.name}_maps *made")
    launches = _launches(kernel, made.uses, first, maps, made.parameters, driver)
    yield from _function(driver, name, parameters, [*begin, *launches, "return status;"])


def _launches(
    kernel: DeviceKernel, uses: Sequence[EntryUse], first: int, maps: str, parameters: Sequence[Parameter],
    driver: Driver,
) -> Iterator[str]:  # fmt: skip
    optional = {p.name for p in parameters if p.is_optional}
    at = 0
    for n, use in enumerate(uses, first):
        places = [kernel.place(a, use) for a in use.entry.arguments]
        yield f"if (status == {driver.success}) {{ /* {use.entry.symbol} */"
        yield from (f"    {line}" for line in driver.launch(n, use.entry.launch, places, optional, maps, at))
        yield "}"
        at += len(use.entry.launch.maps)
