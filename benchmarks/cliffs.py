"""Large strides and few channels beside torch, one thread: problems that leave lanes of vectors empty if read naively.

Run: python benchmarks/cliffs.py
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from report import Report, bench, ratio

LAST = "--stag=axb --dtag=axb"
PROBLEMS = {
    "ISTFT, 1024 by 256": "--deconv mb1ic1026iw224oc1ow58112kw1024sw256pw0",
    "ISTFT, 400 by 160": "--deconv mb1ic402iw201oc1ow32400kw400sw160pw0",
    "ISTFT of frames in the middle": "--deconv mb1ic1026iw224oc1ow57088kw1024sw256pw512",
    "STFT, source": "--dir=BWD_D mb1ic1iw57856oc1026ow223kw1024sw256pw0",
    "STFT, weights": "--dir=BWD_W mb1ic1iw57856oc1026ow223kw1024sw256pw0",
    "STFT": "mb1ic1iw57856oc1026ow223kw1024sw256pw0",
    "vocoder, 32 by 16": "--deconv mb1ic512iw100oc1ow1600kw32sw16pw8",
    "decoder to 3 channels": f"--deconv {LAST} mb1ic256ih32oc3oh128kh8sh4ph2",
    "masks, 16 by 8": f"--deconv {LAST} mb1ic21ih16oc21oh128kh16sh8ph4",
    "patches, source": f"--dir=BWD_D {LAST} mb1ic3ih224oc768oh14kh16sh16ph0",
    "patches, source, channels first": "--dir=BWD_D mb1ic3ih224oc768oh14kh16sh16ph0",
    "rows of a text, source": f"--dir=BWD_D {LAST} mb1ic1ih98iw28oc96oh80ow1kh19kw28",
    "rows of a text, source, channels first": "--dir=BWD_D mb1ic1ih98iw28oc96oh80ow1kh19kw28",
    "24 channels, weights": "--dir=BWD_W mb1ic48ih192oc24oh192kh3ph1",
    "12 channels, weights": "--dir=BWD_W mb1ic292ih16oc12oh16kh3ph1",
    "1x1, weights": f"--dir=BWD_W {LAST} mb1ic512ih80oc128oh80kh1ph0",
    "6 channels a group": f"{LAST} g32mb4ic192ih28oc192oh28kh3ph1",
    "6 channels a group, source": f"--dir=BWD_D {LAST} g32mb4ic192ih28oc192oh28kh3ph1",
    "6 channels a group, weights": f"--dir=BWD_W {LAST} g32mb4ic192ih28oc192oh28kh3ph1",
}
"""A name and a problem; those without a layout have channels first."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Large strides and few channels beside torch, one thread.")
    parser.parse_args(arguments)
    first = [line if LAST in line else f"--stag=abx --dtag=abx {line}" for line in PROBLEMS.values()]
    run = bench(first, "--threads", "1", "--vs", "torch")
    report = Report("cliffs", "Large strides and few channels, one thread")
    report.data = {"runs": [run]}
    report.note(
        "f32. `vs torch` is torch's time divided by ours, from rounds in which both ran in turn. torch has channels "
        "last in two dimensions, whatever ours has."
    )
    rows = [
        [
            name, f"`{row['problem']}`", f"`{row['config']}`", f"{row['seconds']['median'] * 1e6:.1f}",
            f"{row['gflops']['median']:.1f}", ratio(row, "torch"), "yes" if row["verified"] else "NO",
        ]
        for name, row in zip(PROBLEMS, run["rows"], strict=True)
    ]  # fmt: skip
    report.table("Times", ["name", "problem", "config", "us", "GFLOP/s", "vs torch", "verified"], rows)
    speedups = [row["libraries"]["torch"]["speedup"]["median"] for row in run["rows"] if "torch" in row["libraries"]]
    report.note(f"Geometric mean {statistics.geometric_mean(speedups):.2f}, least {min(speedups):.2f}.")
    report.write()


if __name__ == "__main__":
    main()
