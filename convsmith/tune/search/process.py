"""A worker process with a time limit for each request. Its death is an answer: it names the config that killed it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convsmith.diag.errors import InternalError

__all__ = ["WorkerDied", "WorkerProcess"]

REQUEST_SECONDS = 60.0
"""Seconds after which a request has failed: LLVM takes a second at most, a slow kernel some seconds."""
WORKER = (sys.executable, "-P", "-m", "convsmith.tune.search.worker")
_OWN = {"CONVSMITH_CACHE": "off", "CONVSMITH_DATABASE": "off", "CONVSMITH_VERBOSE": "", "CONVSMITH_DUMP": ""}
"""Settings of a worker, which keep candidates out of the cache of compiled kernels."""


class WorkerDied(Exception):
    """The worker died, or did not answer in time (`is_stuck`)."""

    def __init__(self, message: str, is_stuck: bool) -> None:
        super().__init__(message)
        self.is_stuck = is_stuck


class WorkerProcess:
    """Starts a worker at the first request, and a new one at the first request after its death."""

    def __init__(self, command: Sequence[str] = WORKER, seconds: float = REQUEST_SECONDS) -> None:
        self._command = command
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def ask(self, **request: object) -> dict[str, Any]:
        """Return the answer. WorkerDied if there is none, and the process has been ended."""
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = self._line(process)
        except BrokenPipeError:
            line = None
        except KeyboardInterrupt:
            self.close()
            raise
        if line is not None:
            answer: dict[str, Any] = json.loads(line)
            return answer
        stuck = process.poll() is None and line is None and not self._ended
        if stuck:
            process.kill()
        code = process.wait()
        self._process = None
        raise WorkerDied(f"no answer in {self._seconds:g} seconds" if stuck else _death(code), stuck)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **_OWN, "PYTHONPATH": os.pathsep.join(_import_path())}
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
            )
        except OSError as error:
            raise InternalError(f"{self._command[0]}: cannot be started: {error.strerror}") from None
        self._rest, self._ended = b"", False
        return self._process

    def _line(self, process: subprocess.Popen[bytes]) -> bytes | None:
        """Return the next line of the worker's output; None if the output ends, or no line comes in time."""
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        while b"\n" not in self._rest:
            ready, _, _ = select.select([descriptor], [], [], self._seconds)
            part = os.read(descriptor, 1 << 16) if ready else b""
            if not part:
                self._ended = bool(ready)
                return None
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def _import_path() -> list[str]:
    """Return where a worker looks for modules: as this process, without the current directory, whose files may have the
    names of modules, unless this package lies there.
    """
    here, own = os.path.realpath(os.curdir), os.path.realpath(Path(__file__).parents[3])
    return [place for place in sys.path if place and (os.path.realpath(place) != here or here == own)]


def _death(code: int) -> str:
    """Return how a process ended, in words."""
    if code >= 0:
        return f"its process ended with status {code}"
    try:
        return f"its process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was killed by signal {-code}"
