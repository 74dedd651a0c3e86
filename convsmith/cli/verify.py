"""`convsmith verify`: compare kernels with the numpy reference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from convsmith.cli.models import ModelInputs, input_option, models_or_problems
from convsmith.cli.output import STATUS, error_line, exit_status, note, progress
from convsmith.cli.problems import (
    ProblemCommand,
    build,
    check_choices,
    choice_options,
    command,
    problem_options,
    target_of,
)
from convsmith.compiler.service import faults
from convsmith.diag.errors import ConvsmithError
from convsmith.diag.forking import import_lock
from convsmith.machine.registry import target as known_target
from convsmith.measure.verification import has_real_data, verify_kernel
from convsmith.problem.problem import Problem

if TYPE_CHECKING:
    from convsmith.emulate.base import Emulator

__all__ = ["verify"]


@click.command(cls=ProblemCommand, epilog="Example: convsmith verify mobilenet_v2 --layout axb")
@click.argument("source", metavar="NETWORK|DESCRIPTOR|FILE|MODEL.onnx|-")
@choice_options
@problem_options
@input_option
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the data.")
@click.option("--real", is_flag=True, help="Real-valued data, against a bound, besides integer-valued data.")
def verify(
    source: str, threads: int | None, target: str | None, config: str | None, layout: str, seed: int, real: bool,
    inputs: ModelInputs, **options: str | bool | None,
) -> None:  # fmt: skip
    """Run each problem of a file or a model on random data, and compare with the reference.

    Integer-valued data must give equal results. With --real, real-valued data too, where the types allow: sums may be
    off by eps * (2 + sqrt(K)) * sum |a||b|, K being the number of terms, and each element must be what a number
    within that bound, carried through scales and post-ops, becomes. Exit status 1: some line did not.

    If this machine does not run code for the target, an emulator does: qemu for aarch64 and hexagon, Bochs for levels
    of x86-64, Node or wasmtime for WebAssembly, an interpreter of PTX for NVIDIA's GPUs.
    """
    check_choices(target, config, runs=False)
    emulator = _emulator(target_of(target, config))
    listed = models_or_problems(source, options, layout, inputs)
    problems = listed.problems
    note(listed.heading(threads, config))
    if emulator is not None:
        note(f"in {emulator.name}, because this machine does not run code for {target_of(target, config)}")
    status, right, tried = 0, 0, 0
    meta = click.get_current_context().meta
    with progress(len(problems)) as bar:
        try:
            for problem in problems:
                bar.start(listed.text(problem))
                line, failed = _check(problem, threads, target, config, seed, real, emulator)
                tried += 1
                right += not failed
                status = meta[STATUS] = max(status, failed) if 1 not in (status, failed) else 1
                with bar.aside():
                    (error_line if failed else note)(line)
                bar.advance()
        except KeyboardInterrupt:
            error_line(f"interrupted: {tried} of {len(problems)} tried")
            status = 130
    note(f"{right} of {tried} right")
    click.get_current_context().exit(status)


def _emulator(name: str | None) -> Emulator | None:
    """Return the emulator that runs code for the target `name`; None if this machine runs it."""
    with import_lock:
        from convsmith.emulate.emulators import emulator_for, is_native

    machine = known_target(name)
    return None if is_native(machine) else emulator_for(machine)


def _check(
    problem: Problem, threads: int | None, target: str | None, config: str | None, seed: int, real: bool,
    emulator: Emulator | None,
) -> tuple[str, int]:  # fmt: skip
    """Return a line about the problem, and its exit status."""
    text = str(replace(problem, name=None))
    both = real and has_real_data(problem)
    try:
        with faults(command("verify", problem, threads, target, config, seed=seed or None, real=real)):
            kernel = build(problem, threads, target, config)
            if emulator is not None:
                kernel = kernel.emulated()
            verdicts = [verify_kernel(kernel, seed, kind) for kind in ([False, True] if both else [False])]
    except ConvsmithError as error:
        return f"{type(error).__name__}: {text}: {error}", exit_status(error)
    for verdict in verdicts:
        if not verdict.ok:
            doubt = emulator.doubt(kernel.artifact) if emulator is not None and kernel.artifact is not None else ""
            why = f"; {doubt}" if doubt else ""
            return f"mismatch: {text}: {verdict.detail} (seed {seed}, {kernel.config}){why}", 1
    return f"right: {text}: {'; '.join(v.detail for v in verdicts)}", 0
