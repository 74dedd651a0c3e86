"""Packs what a machine without a network lacks to run `gpu.py` and the tests on a GPU, as one small file.

Run: python benchmarks/parcel.py [--python 3.12] [--with ml-dtypes --with rich ...] OUT.tar.xz

The file holds the packages that convsmith needs, without the parts of them that it does not: a machine that runs
PyTorch on a GPU has numpy, and cuda-bindings beside it. Wheels are compressed packages of compressed files; one stream
of all files is a third shorter, because LLVM's library is most of them. There, `tar -xJf OUT.tar.xz -C site`, and
`PYTHONPATH=site:. python3 benchmarks/gpu.py`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

NEEDED = ("llvmlite==0.50.*", "platformdirs>=4")
"""Packages that are packed unless more is asked for."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def wheels(wanted: Sequence[str], python: str, folder: Path) -> list[Path]:
    """Return the files of wheels for Linux on x86-64 and a version of Python, without their dependencies."""
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version",
        python, "--implementation", "cp", *platforms, "--dest", str(folder), *wanted,
    ]  # fmt: skip
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return sorted(folder.glob("*.whl"))


def pack(found: Sequence[Path], out: Path, folder: Path) -> None:
    """Write the contents of wheels to one archive."""
    site = folder / "site"
    for wheel in found:
        with zipfile.ZipFile(wheel) as content:
            content.extractall(site)
    with tarfile.open(out, "w:xz", preset=9) as archive:
        for path in sorted(site.iterdir()):
            archive.add(path, path.name)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Packages for a machine without a network, as one file.")
    parser.add_argument("--python", default="3.12", help="The version of Python of that machine.")
    parser.add_argument("--with", action="append", default=[], dest="more", help="A further package that it lacks.")
    parser.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        found = wheels([*NEEDED, *options.more], options.python, Path(name))
        pack(found, options.out, Path(name))
    packages = ", ".join("-".join(wheel.name.split("-")[:2]) for wheel in found)
    print(f"{options.out}: {options.out.stat().st_size / 2**20:.1f} MiB: {packages}")


if __name__ == "__main__":
    main()
