"""The OpenCL drivers that a process finds: the system's, and the driver for CPUs in the package intel-opencl-rt.

OpenCL's loader reads the names of drivers in a folder, once per process. Python packages cannot add to the system's
folder, so unless the environment names a folder, the process gets a folder with the names of both.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["CPU_PACKAGES", "cpu_driver", "platforms"]

_PACKAGE = "intel-opencl-rt"
CPU_PACKAGES = f"{_PACKAGE} intel-cmplr-lib-rt"
"""The packages of the index that hold a driver for CPUs, and its libraries."""
_LIBRARY = "libintelocl.so"
_FOLDER = "OCL_ICD_VENDORS"
"""The environment variable that names the folder."""
_OF_SYSTEM = Path("/etc/OpenCL/vendors")


@cache
def cpu_driver() -> Path | None:
    """Return the library of the package's driver for CPUs; None if the package is not installed."""
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())).resolve() for file in files if file.name == _LIBRARY)
    return next((file for file in found if file.exists()), None)


def platforms(cl: Any) -> list[Any]:
    """Return the platforms that pyopencl, the module `cl`, finds. Raises an error of pyopencl if there is no platform.
    """
    driver = cpu_driver()
    if driver is None or _FOLDER in os.environ:
        return list(cl.get_platforms())
    with tempfile.TemporaryDirectory(prefix="convsmith-opencl-") as folder:
        for file in _OF_SYSTEM.glob("*.icd"):
            shutil.copy(file, folder)
        Path(folder, "intel-opencl-rt.icd").write_text(f"{driver}\n", encoding="utf-8")
        os.environ[_FOLDER] = folder
        try:
            return list(cl.get_platforms())
        finally:
            del os.environ[_FOLDER]
