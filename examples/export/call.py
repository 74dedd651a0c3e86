r"""A kernel exported as `layer`, called from Python without convsmith: numpy and ctypes read the manifest.

    convsmith export mb1ic8ih6oc16kh3ph1 --dir FWD_B --attr-post-ops relu --accuracy strict --name layer \
        --threads 1 -o layer
    gcc -shared -o layer/liblayer.so -Wl,--whole-archive layer/liblayer.a -Wl,--no-whole-archive
    python call.py layer
"""

import ctypes
import json
import sys
from pathlib import Path

import numpy as np

folder = Path(sys.argv[1])
kernel = json.loads((folder / "layer.json").read_text())["kernels"][0]
library = ctypes.CDLL(str(folder / "liblayer.so"))


def aligned(nbytes: int) -> np.ndarray:
    """Return bytes that begin at a multiple of 128."""
    memory = np.empty(nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 128
    return memory[start : start + nbytes]


def array_of(parameter: dict) -> np.ndarray:
    """Return an array for a tensor, with its logical shape and its layout, that holds 0 to 4 by its order in memory."""
    memory = aligned(parameter["bytes"]).view(np.float32)
    memory[:] = np.arange(memory.size) * 7 % 5
    strides = [4 * stride for stride in parameter["strides"]]
    return np.ndarray(parameter["shape"], np.float32, memory, 0, strides)


def call(symbol: str, parameters: list[dict]) -> None:
    """Call a function of the library on the arrays of its parameters."""
    getattr(library, symbol)(*(ctypes.c_void_p(arrays[p["name"]].ctypes.data) for p in parameters))


packing = kernel["packings"][0]
arrays = {
    p["name"]: array_of(p) if "dtype" in p else aligned(p["bytes"])
    for p in (*packing["parameters"], *kernel["parameters"])
}
call(packing["symbol"], packing["parameters"])
call(kernel["name"], kernel["parameters"])
print(f"dst {arrays['dst'].shape}, sum {arrays['dst'].sum():g}")
