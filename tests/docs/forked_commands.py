"""The command `convsmith`, forked from a process that has run commands already: it imports nothing, and has the tables
of the machines.

`serve` is the process. `forked_commands` makes a folder with a program `convsmith`, which hands its arguments, folder,
environment and standard streams to the process and ends with the status of the command.
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from convsmith.cli.main import main
from convsmith.cli.start import main as start
from convsmith.diag.settings import settings

_RUN_BEFORE = [
    ["show", "mb1ic16ih8oc16kh3ph1", "--threads=1"],
    ["explain", "mb1ic16ih8oc16kh3ph1", "--dt=bf16", "--target=sm_90a"],
    ["show", "mb1ic16ih8oc16kh3ph1", "--target=sm_80"],
    ["show", "mb1ic16ih8oc16kh3ph1", "--target=xe_hpc"],
]
"""Commands that the process runs before all others; they run no kernel, so no runtime of threads is loaded. A forked
command keeps what they have made, as a test keeps what earlier tests of its process have made.
"""

_PROGRAM = """\
import marshal, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({path!r})
    socket.send_fds(server, [b" "], [0, 1, 2])
    server.sendall(marshal.dumps((sys.argv[1:], os.getcwd(), dict(os.environ))))
    server.shutdown(socket.SHUT_WR)
    status = server.recv(1)
sys.exit(status[0] if status else "the server of commands has ended")
"""


@contextmanager
def forked_commands(folder: Path) -> Iterator[Path]:
    """Yield `folder` with the program `convsmith` in it, whose commands a new process runs until the end of the block.
    """
    path, code, program = folder / "socket", folder / "program.py", folder / "convsmith"
    code.write_text(_PROGRAM.format(path=str(path)), encoding="utf-8")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{code}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    command, environment = [sys.executable, __file__, str(path)], os.environ | {"CONVSMITH_CACHE": "off"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as server:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        yield folder


def serve(path: str) -> None:
    """Run the commands that arrive at the socket `path` until standard input ends."""
    for arguments in _RUN_BEFORE:
        assert CliRunner().invoke(main, arguments).exit_code == 0
    gc.freeze()  # a collection in a child would copy all pages
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    commands: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, woken, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            if woken in ready:
                woken.recv(1024)
                _answer(commands)
            if listener in ready:
                client, _ = listener.accept()
                pid = os.fork()
                if not pid:
                    break
                commands[pid] = client
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _run(client)


def _answer(commands: dict[int, socket.socket]) -> None:
    """Send the exit statuses of the commands that have ended to their programs, as a shell numbers them."""
    for pid in list(commands):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            with commands.pop(pid) as client:
                client.sendall(bytes([code if code >= 0 else 128 - code]))


def _run(client: socket.socket) -> None:
    """Run the command of a program in this process, which is a fork of the server."""
    _, streams, _, _ = socket.recv_fds(client, 1, 3)
    with client, client.makefile("rb") as request:
        arguments, folder, environment = marshal.loads(request.read())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["convsmith", *arguments]
    settings.reload()
    start()


if __name__ == "__main__":
    serve(sys.argv[1])
