"""A suite in a space, such as bf16 or two threads, beside the installed libraries: no cliffs?

Run: python benchmarks/suite.py [--suite cliffs] [--space f32] [--sample 300] [--seed 0] [--vs torch,onednn]
     [--budget 2m] [--resume] [--target wasm32+relaxed --npm FOLDER]

300 problems take some five minutes. With --budget a run ends after that time; with --resume a run goes on where the
last one of the day ended, or adds the sample of another seed. The page shows the distribution of the ratios and every
problem that a library computes faster; a picture beside it shows all problems under the roofline.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from report import Report, Row

from convsmith.measure.peers import PEERS
from convsmith.problem.suites.spaces import EVERY, SPACES

SLOWER = 0.97
"""Ratio of a library's time to ours below which the problem is listed."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The problems of a suite in a space.")
    parser.add_argument("--suite", default="cliffs")
    parser.add_argument("--space", default=EVERY, choices=SPACES)
    parser.add_argument("--sample", default="300")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--vs", default=",".join(PEERS))
    parser.add_argument("--budget", default="1h")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--target", help="level of all kernels, by default that of the space")
    parser.add_argument("--npm", help="folder whose node_modules has the libraries that WebAssembly is beside")
    given = parser.parse_args(arguments)
    where = SPACES[given.space]
    threads = f"{where.threads} thread{'s' * (where.threads > 1)}"
    level = f"-{given.target}" if given.target else ""
    title = f"The suite {given.suite}: {where.meaning}; {threads}{f'; {given.target}' if given.target else ''}"
    report = Report(f"suite-{given.suite}-{given.space}{level}", title)
    results = report.stem.with_suffix(".json")
    earlier = json.loads(results.read_text(encoding="utf-8")) if given.resume and results.exists() else {}
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "bench.json"
        if earlier:
            data.write_text(json.dumps(earlier["runs"][0]), encoding="utf-8")
        command = [
            sys.executable, "-m", "convsmith.cli.main", "bench", "--suite", given.suite, "--space", given.space,
            "--sample", given.sample, "--seed", given.seed, "--vs", given.vs, "--rounds", "3", "--budget", given.budget,
            "--json", str(data), "--resume", "--png", str(results.with_suffix(".png")),
        ]  # fmt: skip
        command += [x for name in ("target", "npm") if (own := getattr(given, name)) for x in (f"--{name}", own)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        table = next((x for x in ("\ntime of ", "\ntime at ") if x in done.stdout), "")
        if done.returncode > 2 or not table:  # 2: a problem has no kernel, as its row says, or the page is another's
            sys.exit(done.returncode)
        run = json.loads(data.read_text(encoding="utf-8"))
    samples = dict.fromkeys([*earlier.get("samples", []), f"--sample {given.sample} --seed {given.seed}"])
    report.data = {"runs": [run], "samples": list(samples)}
    rest = "" if run["complete"] else " The last is not measured to its end."
    report.note(f"Samples: {', '.join(samples)}.{rest}")
    report.note(f"![picture of the ratios]({results.with_suffix('.png').name})")
    wrong = [row["problem"] for row in run["rows"] if row["verified"] is False or row["error"]]
    report.note(f"{len(run['rows'])} problems; wrong results or errors: {', '.join(wrong) or 'none'}.")
    report.note("```\n" + done.stdout[done.stdout.index(table) :].strip() + "\n```")
    rows = [[f"`{row['problem']}`", f"`{row['config']}`", name, f"{ratio:.2f}"] for ratio, name, row in losses(run)]
    columns = ["problem", "config", "library", "its time / ours"]
    report.table("Every problem that a library computes faster", columns, rows)
    report.write()


def losses(run: Row) -> list[tuple[float, str, Row]]:
    """Return the rows that the best library computes faster, with its ratio and name, the slowest first."""
    found = []
    for row in run["rows"]:
        ratios = {name: library["speedup"]["median"] for name, library in row["libraries"].items()}
        best = min(ratios, key=ratios.__getitem__, default="")
        if best and ratios[best] < SLOWER:
            found.append((ratios[best], best, row))
    return sorted(found, key=lambda item: item[0])


if __name__ == "__main__":
    main()
