"""Kernels of threads in the text of the IR, which every device computes as the interpreter does, and their arrays."""

from __future__ import annotations

import numpy as np

HEAD = "kernel k(a: f32[512], b: s8[512], c: f32[512], d: s32[64])\n"
KERNELS = {
    "reversed in shared memory": """
  for x in 0 .. 8 #grid:
    alloc s: f32[64] @shared:
      for t in 0 .. 64 #group:
        s[t] = a[x * 64 + t]
        barrier
        c[x * 64 + t] = s[-t + 63]
""",
    "axes of a grid and of a group": """
  for z in 0 .. 2 #grid:
    for y in 0 .. 3 #grid:
      for x in 1 .. 5 #grid:
        for u in 0 .. 2 #group:
          for t in 2 .. 10 #group:
            c[z * 192 + y * 64 + x * 16 + u * 8 + t - 18] = a[z + y * 2 + x * 7 + u * 31 + t * 3]
""",
    "accumulators and vectors": """
  for x in 0 .. 4 #grid:
    alloc s: f32[128] @shared:
      for t in 0 .. 16 #group:
        alloc acc: f32[4] @register:
          s[t * 4]{4} = a[x * 128 + t * 4]{4}
          s[t * 4 + 64]{4} = a[x * 128 + t * 4 + 64]{4}
          barrier
          acc[0] = 0.0
          acc[1] = 1.0
          for k in 0 .. 32:
            acc[0] = fma(s[k * 4], s[k + t], acc[0])
            acc[1] = fma(s[k * 4 + 1], s[k + t], acc[1])
          c[x * 128 + t * 4]{2} = a[x * 4]{2:0}
          c[x * 128 + t * 4 + 2] = acc[0]
          c[x * 128 + t * 4 + 3] = acc[1]
          if t >= 13:
            c[x * 128 + t * 4 + 64]{4/3} = s[t]{4/3}
""",
    "sums of threads and groups": """
  for x in 0 .. 8 #grid:
    for t in 0 .. 64 #group:
      atomic c[t % 3] += a[x * 64 + t]
      atomic d[(x + t) % 5] += cast(s32, b[x * 64 + t])
""",
    "two barriers a step": """
  alloc s: f32[16] @shared:
    for t in 0 .. 8 #group:
      alloc r: f32[1] @register:
        r[0] = 0.0
        for k in 0 .. 4:
          s[t] = a[t + k]
          barrier
          r[0] = r[0] + s[(t + 1) % 8]
          barrier
        c[t] = r[0]
""",
    "asynchronous copies": """
  alloc s: f32[64] @shared:
    for w in 0 .. 2 #warp:
      for l in 0 .. 16 #lane:
        async s[w * 32 + l * 2]{2} = a[w * 32 + l * 2]{2} if w >= 1
        commit
        wait 0
        barrier
        c[w * 16 + l] = s[-w * 32 - l * 2 + 62]
""",
    "one thread": """
  for i in 0 .. 64:
    d[i] = cast(s32, b[i * 8]) * cast(s32, b[i * 8 + 7])
    c[i * 8] = max(a[i], 3.0)
""",
}  # fmt: skip
SPLIT = """
  for x in 0 .. 2 #grid:
    alloc s: f32[64] @shared:
      for y in 0 .. 2 #group:
        for t in 0 .. 32 #group:
          alloc r: f32[1] @register:
            r[0] = 0.0
            for k in 0 .. 4:
              s[t + y * 32] = a[t + y * 32 + k * 64]
              barrier arrive
              for i in 0 .. 2:
                c[t + y * 32 + x * 64 + (k % 3) * 128 + 128] = a[t + i]
              barrier wait
              r[0] = r[0] + s[-t - y * 32 + 63]
              barrier
            c[t + y * 32 + x * 64] = r[0]
"""
"""Statements whose barriers are whole, and in two parts with a loop between them."""


def arrays() -> dict[str, np.ndarray]:
    """Return integers as numbers for all parameters."""
    rng = np.random.default_rng(7)
    whole = rng.integers(-4, 5, 512).astype(np.float32), rng.integers(-128, 128, 512).astype(np.int8)
    return dict(zip("abcd", (*whole, np.zeros(512, np.float32), np.zeros(64, np.int32))))
