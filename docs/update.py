"""Run the commands in the documentation, and write what they print below them.

A block of a page that is fenced as `console` holds commands, each on a line that begins with `$ `, with its output
below. All such blocks of a page run in one shell, in their order, so that a later block can use what an earlier one
has defined; each command has to succeed. A block fenced as `console measured` shows times of a machine: it is left
alone unless asked for.

    python docs/update.py                        # bring every page up to date
    python docs/update.py --measured README.md   # measure again as well (on a machine that does nothing else)
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["PAGES", "ROOT", "code_blocks", "updated"]

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")))

_BLOCK = re.compile(r"^```(?P<kind>[a-z]+(?: measured)?)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_END = "--- end of output ---"
CHOSEN = "intel-server"
"""The micro-architecture for which commands choose configs, on any machine; those that show times are run for this one.
"""


def code_blocks(page: str, kind: str) -> Iterator[str]:
    """The text of each block of a kind, in the order of the page."""
    return (block["text"] for block in _BLOCK.finditer(page) if block["kind"] == kind)


def updated(page: str, measured: bool = False, programs: Path = Path(sys.executable).parent) -> str:
    """The page with what its commands print now; `programs` is the folder of `convsmith`."""
    kinds = ("console", "console measured") if measured else ("console",)
    blocks = [block for block in _BLOCK.finditer(page) if block["kind"] in kinds]
    commands = [_commands(block["text"]) for block in blocks]
    chosen = ["" if block["kind"].endswith("measured") else CHOSEN for block in blocks]
    outputs = iter(_run([(command, each) for block, each in zip(commands, chosen) for command in block], programs))
    for block, here in reversed(list(zip(blocks, [[(c, next(outputs)) for c in block] for block in commands]))):
        text = "".join(f"$ {command}\n{output}" for command, output in here)
        page = f"{page[: block.start('text')]}{text}{page[block.end('text') :]}"
    return page


def _commands(block: str) -> list[str]:
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def _run(commands: Sequence[tuple[str, str]], folder: Path) -> list[str]:
    """Return what each command prints for its micro-architecture; one shell, which looks for programs in `folder`
    first, runs them all. Ends the program when one fails.
    """
    if not commands:
        return []
    parts = [
        f"export CONVSMITH_MICRO_ARCHITECTURE={chosen}\n{{ {command}\n}} 2>&1\necho '{_END}' $?\n"
        for command, chosen in commands
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONVSMITH_")}
    folders = dict.fromkeys([str(folder), str(Path(sys.executable).parent), environment.get("PATH", "")])
    environment |= {"CONVSMITH_CACHE": "off", "CONVSMITH_DATABASE": "off"}
    environment |= {"PATH": os.pathsep.join(folders), "NO_COLOR": "1"}
    shell = ["bash", "-o", "pipefail", "-c", "".join(parts)]
    done = subprocess.run(shell, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    found = re.findall(rf"(.*?){_END} (\d+)\n", done.stdout, re.DOTALL)
    for (command, _), (output, status) in zip(commands, found, strict=True):
        if status != "0":
            sys.exit(f"$ {command}\n{output}exit status {status}")
    return [output for output, _ in found]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run the commands in the documentation again.")
    parser.add_argument("--measured", action="store_true", help="also those that show times of this machine")
    parser.add_argument("pages", nargs="*", default=PAGES, help="Markdown files (default: all that have commands)")
    options = parser.parse_args(arguments)
    for name in options.pages:
        path = ROOT / name
        page = path.read_text(encoding="utf-8")
        new = updated(page, options.measured)
        path.write_text(new, encoding="utf-8")
        print(f"{name}: {'unchanged' if new == page else 'updated'}")


if __name__ == "__main__":
    main()
