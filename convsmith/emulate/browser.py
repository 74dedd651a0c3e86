"""`Browser`: kernels of WebGPU in headless Chromium, on its software adapter where the machine has no GPU.

Each entry is one dispatch of its entry point. The package selenium drives the browser, which starts at the first kernel
and ends with this process.
"""

from __future__ import annotations

import atexit
import base64
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from convsmith.codegen.artifact import Artifact, Entry
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.diag.forking import import_lock
from convsmith.diag.record import record
from convsmith.emulate.base import EmulatedCode, Emulator, Memory
from convsmith.machine.base import Machine
from convsmith.runtime.device_library import OpenedOnce
from convsmith.runtime.loading import LoadedCode

__all__ = ["BROWSER", "Browser", "dispatch", "opened", "opened_page"]

_PROGRAMS = ("chromium", "google-chrome", "chrome")
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--no-first-run", "--disable-background-networking", "--disable-sync",
    "--disable-component-update",
)
_WEBGPU_OPTIONS = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")
"""The software adapter gives every machine the same results."""
_SECONDS = 600.0
_POISON = 0xFF
"""The byte that fills memory that no entry has written: NaN as a float, -1 as an integer."""
_FEATURES = """
const done = arguments[arguments.length - 1];
const found = async () => {
  const adapter = navigator.gpu && (await navigator.gpu.requestAdapter());
  return adapter ? [...adapter.features, ...navigator.gpu.wgslLanguageFeatures] : [];
};
found().then(done);
"""
_SCRIPT = Path(__file__).with_name("launch_wgsl.js")


@record(frozen=True)
class Browser(Emulator):
    """Chromium, which runs the code of WebGPU's targets."""

    @property
    def name(self) -> str:
        return "Chromium"

    def runs(self, machine: Machine) -> bool:
        return machine.device is not None and machine.device.code == "wgsl"

    def check(self, machine: Machine) -> None:
        """Raise UnsupportedError if the browser or the package that drives it is not installed, or its adapter lacks a
        feature of the level.
        """
        _program()
        _package()
        lacking = {*machine.needs}.difference(opened().features if machine.needs else ())
        if lacking:
            raise UnsupportedError(
                f"kernels for {machine.name} do not run in this Chromium, which lacks {', '.join(sorted(lacking))}",
                code="emulator",
            )

    def load(self, artifact: Artifact) -> LoadedCode:
        return EmulatedCode(artifact, partial(_run, artifact))


BROWSER = Browser()


def _program() -> str:
    found = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if found is None:
        raise UnsupportedError(
            "kernels for browsers run in Chromium, which is not installed; Debian's packages chromium and "
            "chromium-driver install it",
            code="emulator",
        )
    return found


def _package() -> Any:
    """Return selenium's driver of Chrome."""
    try:
        with import_lock:
            from selenium import webdriver
    except ImportError:
        raise UnsupportedError(
            "kernels for browsers run in Chromium through the package selenium, which is not installed; pip install "
            "'convsmith[web]' installs it",
            code="emulator",
        ) from None
    return webdriver


def _driver(*more: str) -> Any:
    """Return the driver of a new browser with `more` options. ToolchainError if it does not start."""
    webdriver, options = _package(), _package().ChromeOptions()
    options.binary_location = _program()
    for option in (*_OPTIONS, *more):
        options.add_argument(option)
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    try:
        made = webdriver.Chrome(options=options, service=service)
    except Exception as error:
        raise ToolchainError("Chromium did not start", text=str(error)) from None
    made.set_script_timeout(_SECONDS)
    return made


@contextmanager
def opened_page(address: str) -> Iterator[Any]:
    """The driver of a browser of its own that shows the page at an address; the browser is closed at the end."""
    driver = _driver("--disable-gpu")
    try:
        driver.get(address)
        yield driver
    finally:
        driver.quit()


class _OpenedBrowser:
    """A browser with an empty page. ToolchainError if it does not start."""

    def __init__(self) -> None:
        self.driver = _driver(*_WEBGPU_OPTIONS)
        # WebGPU needs a page of a secure origin, which a file is.
        self.folder = tempfile.TemporaryDirectory()
        page = Path(self.folder.name) / "empty.html"
        page.write_text("<!doctype html><title>convsmith</title>")
        self.driver.get(page.as_uri())
        self.features: frozenset[str] = frozenset(self.driver.execute_async_script(_FEATURES))
        """Features of the adapter and of its language."""
        atexit.register(self._end, os.getpid())

    def _end(self, process: int) -> None:
        if os.getpid() == process:
            self.driver.quit()


opened = OpenedOnce(_OpenedBrowser, "Chromium", "emulator")


def dispatch(
    code: str, symbol: str, groups: Sequence[int], arrays: Sequence[bytes], written: Sequence[int]
) -> list[bytes]:  # fmt: skip
    """Run the entry point ``symbol`` of a module of WGSL in so many ``groups`` along each axis, and return the contents
    of the ``written`` arrays, by number. All arrays must be in use.

    UnsupportedError if the browser has no adapter. ToolchainError if it refuses the module; `text` lists its reasons.
    """
    texts = [base64.b64encode(x).decode() for x in arrays]
    browser = opened()
    with opened.guard.lock:
        found = browser.driver.execute_async_script(
            _SCRIPT.read_text(), code, symbol, list(groups), texts, list(written)
        )
    if "lacks" in found:
        raise UnsupportedError(f"kernels for webgpu do not run in this Chromium: {found['lacks']}", code="emulator")
    if found["faults"]:
        raise ToolchainError(
            f"Chromium refuses entry {symbol}: {found['faults'][0]}", code="fault", text="\n".join(found["faults"])
        )
    return [base64.b64decode(x) for x in found["results"]]


def _run(artifact: Artifact, entry: Entry, memory: Memory) -> None:
    """Dispatch an entry on memory. ToolchainError names a fault of the program."""
    names = [a.name for a in entry.arguments]
    pieces = {n: memory.pieces[name] for n, name in enumerate(names) if name in memory.pieces}
    written = [n for n, piece in pieces.items() if piece.is_written]
    try:
        found = dispatch(artifact.code.decode(), entry.symbol, entry.launch.grid, [*_contents(entry, memory)], written)
    except ToolchainError as error:
        raise ToolchainError(
            f"the kernel of {artifact.problem!r} (config {artifact.config}): {error}", code=error.code, text=error.text
        ) from None
    for n, contents in zip(written, found):
        pieces[n].contents[:] = np.frombuffer(contents, np.uint8)[: pieces[n].contents.size]


def _contents(entry: Entry, memory: Memory) -> Iterator[bytes]:
    """Yield the bytes of each argument, a multiple of four: arrays, memory of the entry's own, and sizes."""
    for a in entry.arguments:
        if a.name in memory.sizes:
            yield memory.sizes[a.name].to_bytes(4, "little")
        elif a.name in memory.pieces:
            piece = memory.pieces[a.name]
            given = bytes([_POISON]) * piece.contents.size if piece.is_blank else piece.contents.tobytes()
            yield given + bytes(-len(given) % 4)
        else:
            yield bytes(a.nbytes) if a.role == "zero" else bytes([_POISON]) * a.nbytes
