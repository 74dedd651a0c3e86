"""Runs of modules without side effects: writes to attributes are detected and undone, at few calls of functions."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import pytest
from callcounts import counting

torch = pytest.importorskip("torch", exc_type=ImportError)

from torch import nn  # noqa: E402

from convsmith.torch.purity import undone  # noqa: E402


class _Filled(nn.Module):
    """A module with a container of each kind, empty and with two elements, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(2))
        for name, content in (("full", (1, 2)), ("empty", ())):
            setattr(self, f"{name}_list", list(content))
            setattr(self, f"{name}_deque", deque(content))
            setattr(self, f"{name}_set", set(content))
            setattr(self, f"{name}_dict", dict.fromkeys(content))
            setattr(self, f"{name}_ordered", OrderedDict.fromkeys(content))


def _add(container: Any) -> None:
    if isinstance(container, dict):
        container[3] = None
    elif isinstance(container, set):
        container.add(3)
    else:
        container.append(3)


CONTAINERS = [f"{name}_{kind}" for name in ("full", "empty") for kind in ("list", "deque", "set", "dict", "ordered")]


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("change", [_add, lambda container: container.clear()])
def test_changes_of_containers_are_detected_and_undone(name: str, change: Any) -> None:
    model = nn.Sequential(_Filled())
    container = getattr(model[0], name)
    before = type(container)(container)
    with undone(model) as changed:
        assert changed() == ""
        change(container)
        assert changed() == ("" if container == before else f"it writes its attribute 0.{name}")
    assert getattr(model[0], name) is container and container == before


def test_writes_to_buffers_and_new_attributes_are_undone() -> None:
    model = _Filled()
    with undone(model) as changed:
        model.counts.add_(1)
        assert changed() == "it writes its parameters or buffers"
        model.more = 1
        assert changed() == "it writes its attribute more"
    assert not hasattr(model, "more") and not model.counts.any()


def test_the_state_of_a_layer_is_recorded_by_few_calls() -> None:
    """A layer has some twenty containers, most of which are empty."""
    calls = []
    for layers in (10, 60):
        model = nn.Sequential(*(nn.ReLU() for _ in range(layers)))
        with counting() as found, undone(model) as changed:
            changed()
        calls.append(found["all"])
    assert calls[1] - calls[0] <= 50 * 50
