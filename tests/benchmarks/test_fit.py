"""Fitting finds costs by which the first choices of a table lose less, and keeps what serves half of it alone away."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from convsmith.machine.micro_architectures import MicroArchitecture, named
from convsmith.machine.prices import LIMITS
from convsmith.machine.registry import known_targets

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = ((192, 28), (384, 14), (576, 14), (960, 7))
LINES = [f"--stag=axb --dtag=axb g{c}mb1ic{c}ih{n}oc{c}oh{n}kh3ph1" for c, n in SIZES]


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("fit")


def table_of(fit: Any, losses: Sequence[float], micro_architecture: MicroArchitecture) -> Any:
    """Return a table in which the choice of ``micro_architecture`` is the fastest, and that of the reference costs
    takes longer by a factor of ``losses``.
    """
    plain = fit.Table("", "", "", tuple(fit.Question(line, "avx2", {}) for line in LINES))
    chosen = [[x.config for x in fit.first_choices(plain, of)] for of in (micro_architecture, named("generic"))]
    questions = []
    for line, best, first, loss in zip(LINES, *chosen, losses):
        assert best != first
        samples = {first: fit.Sample(loss, 0.01, 15), best: fit.Sample(1.0, 0.01, 15)}
        questions.append(fit.Question(line, "avx2", samples))
    return fit.Table("generic", "", "", tuple(questions))


CHANGED = MicroArchitecture("", costs=(("straight_call", 100.0),))
"""Costs with other first choices than the reference costs: calls of tiles without loops take long."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("losses", "is_found"), [((1.2, 1.2, 1.2, 1.2), True), ((1.3, 0.9, 1.3, 0.9), False)])
def test_a_cost_changes_where_both_halves_of_the_problems_gain(
    fit: Any, losses: Sequence[float], is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "values", lambda name, value: [100.0])
    found = fit.Fit(table_of(fit, losses, CHANGED), named("generic"), "avx2")
    before, told = fit.mean_loss(found.answers), []
    assert found.improve("straight_call", told.append) is is_found
    assert found.changed == ({"straight_call": 100.0} if is_found else {}) and len(told) == is_found
    assert (fit.mean_loss(found.answers) < before) is is_found
    assert not found.improve("straight_call", told.append)


def test_prices_are_tried_by_the_features_of_measured_configs(fit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No nest is computed again for a price; a limit decides what features are, so all its values are tried."""
    monkeypatch.setattr(fit, "values", lambda name, value: [0.5 * value, value, 100.0])
    found = fit.Fit(table_of(fit, (1.2, 1.2, 1.2, 1.2), CHANGED), named("generic"), "avx2")
    monkeypatch.setattr(fit, "expected_features", None)
    assert list(found.promising("straight_call")) == [100.0]
    assert list(found.promising("fragment_product")) == [], "no measured config has fragments"
    assert len(list(found.promising("weights_kept"))) == 3


def test_every_cost_is_a_price_or_a_limit() -> None:
    machine = known_targets("generic")[0]
    costs = {x.name for x in fields(machine.costs) if x.type in ("float", "int")}
    assert costs >= LIMITS and costs <= {*machine.prices, *LIMITS}


def test_every_cost_that_is_a_number_has_values_to_try(fit: Any) -> None:
    names = fit.numeric_costs()
    costs = known_targets("generic")[0].costs
    assert {"call", "beyond", "weights_kept"} <= set(names)
    assert not {"slow", "transform_far", "page", "weights_byte"} & set(names)
    for name in names:
        now = getattr(costs, name)
        tried = list(fit.values(name, now))
        assert len(tried) >= 3 and now not in tried and all(type(x) in (int, float) for x in tried)


def test_costs_of_a_width_replace_those_of_all_levels() -> None:
    one = MicroArchitecture("", "x86_64", costs=(("call", 1.0), ("turn", 3.0)), by_bits=((256, (("call", 2.0),)),))
    levels = {level.name: one.of(level).costs for level in known_targets("generic")}
    assert (levels["avx512"].call, levels["avx512"].turn) == (1.0, 3.0)
    assert (levels["avx2"].call, levels["avx2"].turn) == (2.0, 3.0)
    assert levels["aarch64"] == next(x.costs for x in known_targets("generic") if x.name == "aarch64")


def test_costs_are_judged_on_problems_that_they_were_not_fitted_to(fit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(fit, (1.2, 1.2, 1.2, 1.2), CHANGED)
    assert {fit.half(x) for x in table.questions} == {0, 1}
    assert all(fit.half(x._replace(level="avx512")) == fit.half(x) for x in table.questions)

    def run(self: Any, names: Sequence[str], passes: int, tell: Any) -> None:
        is_first = [x.question.line for x in self.answers] == LINES[:1]
        self.changed = {"straight_call": 100.0} if is_first else {}

    monkeypatch.setattr(fit.Fit, "run", run)
    monkeypatch.setattr(fit, "half", lambda question: int(question.line == LINES[0]))
    found = fit.held_out(table, named("generic"), "avx2", ["straight_call"], 1)
    judged = {x.question.line: x.loss for x in found["costs fitted to the other half"]}
    assert judged == {LINES[0]: 1.2, **dict.fromkeys(LINES[1:], 1.0)}, "only the fit to the first line finds the cost"
    assert fit.mean_loss(found["reference costs"]) == fit.mean_loss(found["costs fitted to all problems"])
