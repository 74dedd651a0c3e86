"""The filter bank runs on a part of its photograph, and agrees with scipy."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import convsmith as cs
from convsmith.runtime.denormals import count_denormals

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def filter_bank() -> ModuleType:
    spec = importlib.util.spec_from_file_location("filter_bank", EXAMPLES / "filter_bank.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_filters_are_what_their_names_say(filter_bank: ModuleType) -> None:
    channels, weights = filter_bank.filter_bank()
    assert weights.shape == (19, 3, 25, 25)
    assert [where.stop for where in channels.values()][-1] == len(weights)
    assert count_denormals(weights) == 132, "which the example takes as zero"
    sums = weights.sum(axis=(1, 2, 3))
    for name, where in channels.items():
        np.testing.assert_allclose(sums[where], 1 if name.startswith("Gaussian") else 0, atol=1e-5, err_msg=name)


def test_a_part_of_the_photograph_is_filtered_as_scipy_does(
    filter_bank: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    photo = filter_bank.load_sample_image("china.jpg")[100:148, 200:264]
    with warnings.catch_warnings():
        warnings.simplefilter("error", cs.DenormalWarning)
        error = filter_bank.run(photo, tmp_path / "sheet.png")
    assert error < 1e-5
    assert "19 filters of 25 x 25 x 3 on 64 x 48 pixels" in capsys.readouterr().out
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (5 * 68 + 4, 3 * 68 + 4)
        assert len(sheet.getcolors(maxcolors=1 << 20)) > 1000
