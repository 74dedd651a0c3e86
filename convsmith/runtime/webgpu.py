"""Kernels of WebGPU, which a browser launches: a process can compile them, and run them in an emulator only."""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from convsmith.codegen.artifact import Artifact, Entry
from convsmith.diag.errors import UnsupportedError

__all__ = ["WebGpuFunction", "WebGpuLibrary", "check_device", "device_name"]


def _refuse() -> NoReturn:
    raise UnsupportedError(
        "kernels for webgpu are launched by a browser, not by this process; `verify` runs them in Chromium, and "
        "`show --wgsl` prints them",
        code="webgpu",
    )


def device_name() -> str:
    """Raise UnsupportedError."""
    _refuse()


def check_device(target: str, needs: Collection[str]) -> None:
    """Raise UnsupportedError."""
    _refuse()


class WebGpuFunction:
    """One entry; UnsupportedError when it is called."""

    whole = None

    def __init__(self, entry: Entry) -> None:
        self.entry = entry

    def __call__(self, block: int, keep: object = None) -> None:
        _refuse()


class WebGpuLibrary:
    """The entries of an artifact, which can be inspected."""

    def __init__(self, artifact: Artifact) -> None:
        self._functions = {name: WebGpuFunction(entry) for name, entry in artifact.entries.items()}

    def __getitem__(self, entry: str) -> WebGpuFunction:
        return self._functions[entry]
