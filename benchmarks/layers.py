"""Eight layers and four odd ones on one thread: how near to the peak.

Run: python benchmarks/layers.py [--target avx2]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence

from report import Report, Row, bench, percent, ratio

LAYERS = {
    "a": "mb1ic64ih56oc64oh56kh3ph1",
    "b": "mb1ic128ih28oc128oh28kh3ph1",
    "c": "mb1ic256ih14oc256oh14kh3ph1",
    "d": "mb1ic512ih7oc512oh7kh3ph1",
    "e": "mb1ic64ih56oc256oh56kh1ph0",
    "f": "mb1ic1024ih14oc256oh14kh1ph0",
    "g": "mb1ic2048ih7oc512oh7kh1ph0",
    "h": "mb1ic3ih224oc64oh112kh7sh2ph3",
}
PADDED = "abcd"
ODD = {
    "9x9 64 -> 3 at 224 x 224": "mb1ic64ih224oc3oh224kh9ph4",
    "3x3 256 -> 21 at 56 x 56": "mb1ic256ih56oc21oh56kh3ph1",
    "3x3 64 -> 1 at 112 x 112": "mb1ic64ih112oc1oh112kh3ph1",
    "3x3 512 -> 512 at 4 x 4": "mb1ic512ih4oc512oh4kh3ph1",
}
LAST = "--stag=axb --dtag=axb"
BLOCKED = "--stag=aBcd16b --dtag=aBcd16b"
STEM = "--stag=abx --dtag=aBcd16b"
POST = "--dir=FWD_B --attr-post-ops=relu"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Layers on one thread, beside the peak.")
    parser.add_argument("--target", help="instruction set (default: the best of this machine)")
    target = parser.parse_args(arguments).target
    lines: list[tuple[str, str, str]] = []
    for name, layer in LAYERS.items():
        lines.append(("plain", name, f"{STEM if name == 'h' else LAST} {layer}"))
        lines.append(("post", name, f"{POST} {STEM if name == 'h' else LAST} {layer}"))
        if name != "h":
            lines.append(("blocked", name, f"{BLOCKED} {layer}"))
    lines += [("odd", name, f"{LAST} {layer}") for name, layer in ODD.items()]
    options = ["--threads", "1", "--vs", "torch", *(["--target", target] if target else [])]
    run = bench([line for *_, line in lines], *options)
    rows = {(kind, name): row for (kind, name, _), row in zip(lines, run["rows"], strict=True)}

    report = Report(f"layers-{target}" if target else "layers", "One thread: share of the peak")
    report.data = {"runs": [run], "kinds": [[kind, name] for kind, name, _ in lines]}
    report.note(
        "Batch 1, f32. Taps that meet padding count as work, and are skipped: so a padded layer can pass 100 %. "
        "+- is half the distance of the quartiles; `vs torch` is torch's time divided by ours."
    )
    columns = ["layer", "problem", "config", "us", "GFLOP/s", "% of peak", "verified", "vs torch"]

    def cells(kind: str, name: str) -> list[str]:
        row = rows[kind, name]
        return [
            name, f"`{row['problem']}`", f"`{row['config']}`", f"{row['seconds']['median'] * 1e6:.1f}",
            f"{row['gflops']['median']:.1f}", percent(row["of_peak"]), "yes" if row["verified"] else "NO",
            ratio(row, "torch"),
        ]  # fmt: skip

    report.table("Channels-last (h: channels-first in, blocked out)", columns, [cells("plain", n) for n in LAYERS])
    report.table("Channels in blocks of 16", columns, [cells("blocked", n) for n in LAYERS if n != "h"])
    with_post = []
    for name in LAYERS:
        share = rows["post", name]["of_peak"]["median"] / rows["plain", name]["of_peak"]["median"]
        with_post.append([*cells("post", name), f"{share * 100:.1f}"])
    report.table("With bias and relu", [*columns, "% of the bare layer"], with_post)
    report.table("Odd ones: few channels, few pixels", columns, [cells("odd", n) for n in ODD])
    blocked = [name for name in LAYERS if name != "h"]
    report.note(
        f"Least share of the peak: {_least(rows, 'plain', LAYERS)} channels-last, {_least(rows, 'plain', PADDED)} of "
        f"the padded 3x3 ones, {_least(rows, 'blocked', blocked)} blocked, {_least(rows, 'odd', ODD)} of the odd "
        f"ones. Bias and relu cost at most {100 - min(float(line[-1]) for line in with_post):.1f} %."
    )
    report.write()


def _least(rows: Mapping[tuple[str, str], Row], kind: str, names: Iterable[str]) -> str:
    """The least share, and whose it is."""
    share, name = min((rows[kind, n]["of_peak"]["median"], n) for n in names)
    return f"{share * 100:.1f} % ({name})"


if __name__ == "__main__":
    main()
