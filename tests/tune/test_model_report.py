"""The error of the cost model is computed from the rows of a database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convsmith.tune.records.measured import Measured
from convsmith.tune.records.report import model_errors

FIRST = Measured("p", "first", "m", "c", "avx2", 1, "ok", 1.0, 1e-5, 0.0, 20, 100.0)


def test_a_model_that_predicts_every_ratio_has_no_error() -> None:
    rows = [FIRST, replace(FIRST, config="fast", ratio=0.5, predicted=50.0, rounds=9)]
    rows += [replace(row, target="avx512") for row in rows]  # another question
    (error,) = model_errors(rows)
    assert (error.problems, error.configs, error.error) == (2, 4, 0.0)
    assert error.loss == error.worst == pytest.approx(1.0)


def test_the_error_is_a_factor_between_two_configs() -> None:
    """The model expects twice and half of what is measured."""
    rows = [replace(FIRST, predicted=200.0), replace(FIRST, config="other", ratio=1.00001, predicted=50.0)]
    (error,) = model_errors(rows)
    assert error.error == pytest.approx(1.0, rel=1e-3) and error.loss == 0


def test_machines_and_compilers_are_apart_and_failures_do_not_count() -> None:
    rows = [replace(FIRST, machine=m, compiler=c, config=x, ratio=r) for m, c in (("m", "c"), ("m", "d"), ("n", "c"))
            for x, r in (("first", 1.0), ("other", 0.8))]  # fmt: skip
    rows += [replace(FIRST, machine="x"), replace(FIRST, machine="x", config="bad", status="crashed", ratio=0.0)]
    assert [(e.machine, e.compiler) for e in model_errors(rows)] == [("m", "c"), ("m", "d"), ("n", "c")]
