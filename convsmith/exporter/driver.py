"""The C of the drivers of devices: their types, and the calls that load code, make tensor maps and launch entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence

from convsmith.codegen.artifact import Launch
from convsmith.exporter.device_build import ArgumentPlace, DeviceKernel
from convsmith.exporter.interface import EntryUse, Parameter

__all__ = ["Driver", "bytes_text"]


class Driver(ABC):
    """The C of one driver; methods return lines, which bodies of functions hold.

    `status` is the type of statuses and `success` its first value, `memory` the type of an array of a device, `map` the
    type of a tensor map; `queue` declares the queue of a call. `head` are the first lines of a header, `link` is the
    option that links a program with the library. `loaded_from` are the parameters of the function that loads code.
    A text for people names the `library` and the `context`, and says what a caller must know `of_load` and `of_arrays`.
    """

    library: str
    context: str
    status: str
    success: str
    memory: str
    queue: str
    map: str = ""
    head: Sequence[str]
    link: str
    loaded_from: Sequence[str]
    of_load: str
    of_arrays: str

    def declared(self, p: Parameter) -> str:
        """Return the declaration of a parameter."""
        return f"{self.memory} {p.name}"

    @abstractmethod
    def needed(self, kernel: DeviceKernel) -> str:
        """Return a sentence about the devices that run the code of a kernel."""

    def helpers(self, kernels: Sequence[DeviceKernel]) -> Iterator[str]:
        """Yield the functions that those of the kernels share."""
        yield from ()

    @abstractmethod
    def members(self, kernel: DeviceKernel) -> Iterator[str]:
        """Yield the members of the structure of loaded code."""

    @abstractmethod
    def load(self, kernel: DeviceKernel) -> list[str]:
        """Return the body of the function that fills the structure ``m``."""

    @abstractmethod
    def unload(self, kernel: DeviceKernel) -> list[str]:
        """Return the body of the function that frees what the structure ``m`` holds."""

    def maps(self, kernel: DeviceKernel, uses: Sequence[EntryUse], maps: str) -> Iterator[str]:
        """Yield lines that make the tensor maps of entries in the array ``maps``."""
        yield from ()

    @abstractmethod
    def checked(self, parameters: Sequence[Parameter]) -> Iterator[str]:
        """Yield lines that return an error for arrays that no entry can take."""

    @abstractmethod
    def launch(
        self, n: int, launch: Launch, places: Sequence[ArgumentPlace], optional: Collection[str], maps: str, first: int
    ) -> Iterator[str]:
        """Yield lines that run the entry of number ``n`` of the module on arguments at ``places``; pointers of the
        parameters ``optional`` may be null. The entry's tensor maps begin with ``maps[first]``.
        """

    # -- the example
    @abstractmethod
    def opened(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return declarations of the whole program, and the lines that open a device."""

    @abstractmethod
    def name_of_error(self) -> Sequence[str]:
        """Return the body of a function from a ``status`` to a text."""

    load_arguments: str
    """The arguments of a function that loads ``code`` of ``bytes`` bytes."""
    queue_name: str
    wait: str
    """The call that waits for the queue."""
    null: str = "0"
    """The pointer of an array that a call omits."""

    @abstractmethod
    def reserve(self, name: str, nbytes: str) -> str:
        """Return statements that reserve an array of the device."""

    @abstractmethod
    def write(self, name: str, source: str, nbytes: str) -> str:
        """Return the call that copies an array of the host to the device."""

    @abstractmethod
    def read(self, name: str, target: str, nbytes: str) -> str:
        """Return the call that copies an array to the host, after the work of the queue."""

    @abstractmethod
    def free(self, name: str) -> str:
        """Return the call that frees an array."""


def bytes_text(contents: bytes) -> Iterator[str]:
    """Yield the lines of the values of an array of bytes, without braces."""
    for start in range(0, len(contents), 24):
        yield f"    {', '.join(map(str, contents[start : start + 24]))},"
