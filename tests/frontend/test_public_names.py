"""The package shows its public names, each with its documentation, and nothing that it imports."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import convsmith as cs


@pytest.mark.parametrize("module", [cs, cs.onnx], ids=["convsmith", "convsmith.onnx"])
def test_only_public_names_are_listed(module: object) -> None:
    cs.compile("ic1ih1oc1kh1")  # loads modules into the package
    assert dir(module) == sorted(module.__all__)  # type: ignore[attr-defined]
    for name in dir(module):
        if not name.startswith("__"):
            assert inspect.getdoc(getattr(module, name)), name


def test_names_are_the_same_before_anything_is_loaded() -> None:
    command = "import convsmith; print(dir(convsmith))"
    listed = subprocess.run([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert listed.strip() == str(dir(cs))


def test_convolutions_differ_in_rank_only() -> None:
    for kind in ("conv", "conv_transpose"):
        signatures = {str(inspect.signature(getattr(cs, f"{kind}{rank}d"))) for rank in (1, 2, 3)}
        assert len(signatures) == 1
