"""Tests draw the same in every run, so that none fails by chance for code that has not changed: the examples of
hypothesis, and the numbers of generators that a test does not seed, whatever ran before in its process.

The profile `anew` draws other examples of hypothesis in each run, and FACTOR times as many.

A test says `@examples(200)` instead of `@settings(max_examples=200)`; without either it has 100 examples.
"""

from __future__ import annotations

import random
import sys

import numpy as np
from hypothesis import HealthCheck, settings

FACTOR = 30
"""Examples under the profile `anew` for each one of the other tiers."""


def register_profiles() -> None:
    """Register the profiles `same` and `anew`, and load the first; `--hypothesis-profile` loads another one later."""
    # On a loaded machine, neither an example nor its draw may fail a test by its time.
    any_load = settings(
        settings.get_profile("default"), deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
    )
    settings.register_profile("same", any_load, derandomize=True)
    settings.register_profile("anew", any_load, max_examples=any_load.max_examples * FACTOR)
    settings.load_profile("same")


def examples(number: int) -> settings:
    """Return settings with `number` examples under the profile `same`, and in proportion under other profiles."""
    same, current = settings.get_profile("same"), settings.default
    assert current is not None
    return settings(max_examples=number * current.max_examples // same.max_examples)


def seed_generators() -> None:
    """Seed the generators that a process shares, PyTorch's where something has imported it."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
