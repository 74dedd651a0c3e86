"""Channels first: vectors lie along the pixels of a row, which are read up to borders, or from a padded copy."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import Compiled, check_result, expected

from convsmith.compiler.driver import build_artifact
from convsmith.machine.registry import host_targets
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.tune.candidates import default_config

TARGETS = {t.name: t for t in host_targets()}
BEST = next(iter(TARGETS))
FIRST = "--stag=abx --dtag=abx"
LINES = [
    "g5mb2ic5ih20iw23oc5oh20ow23kh7kw7ph3pw3",
    "g19mb1ic19ih17oc19oh17kh3ph1",
    "g6mb1ic6ih36iw40oc6oh18ow20kh5kw5sh2sw2ph2pw2",
    "g4mb2ic4ih16oc4oh16kh11ph5",
    "g3mb1ic3ih14iw35oc3oh14ow31kh3kw3ph2pw0dh1dw1",
    "g7mb2ic7iw100oc7ow100kw31pw15",
    "g4mb1ic4iw50oc4ow25kw5sw2pw2",
    "g9mb1ic9ih21oc9oh6kh11sh2ph0",
    "mb3ic4ih7iw34oc33oh3ow18kh1kw1sh3sw2ph0pw1",
    "g2mb1ic2id5ih6iw17oc2od5oh6ow17kd3kh3kw3pd1ph1pw1",
    "--accuracy=strict --attr-post-ops=relu --dir=FWD_B mb2ic4ih16oc40oh16kh3ph1",
    "mb1ic3ih20iw33oc9oh20ow33kh3kw3ph1pw1",
    "g4mb1ic16ih17oc16oh17kh3ph1",
    "g2mb1ic6ih33oc10oh17kh3sh2ph1",
    "--dt=f64 g5mb1ic5ih9iw17oc5oh9ow17kh5kw5ph2pw2",
    "--dir=BWD_D g5mb1ic5ih20iw23oc5oh20ow23kh7kw7ph3pw3",
    "--dt=bf16 g4mb1ic4ih16oc4oh16kh5ph2",
    "--dir=BWD_D mb1ic4ih18oc5oh16kh5ph1",
    "--deconv g3mb1ic3ih17oc3oh19kh9ph3",
    "--dir=BWD_D g5mb2ic5ih20iw47oc5oh10ow24kh7kw7sh2sw2ph3pw3",
    "--dir=BWD_D g3mb1ic3ih21iw36oc3oh7ow18kh3kw5sh3sw2ph0pw2",
    "--deconv g4mb1ic4iw40oc4ow83kw9sw2pw2",
    "--deconv --dir=FWD_B --attr-post-ops=relu g3mb2ic3ih9iw18oc3oh18ow36kh4kw4sh2sw2ph1pw1",
    "--deconv mb1ic16ih17oc3oh34kh4sh2ph1",
    "g40mb1ic40ih7oc40oh4kh3sh2ph1",
    "g5mb2ic5ih14oc5oh7kh3sh2ph1",
    "g3mb1ic3ih9iw30oc3oh9ow32kh3kw4ph1pw3dh0dw0",
    "g2mb1ic2ih12iw70oc2oh12ow70kh5kw5ph4pw4dh1dw1",
    "--dir=FWD_B --attr-post-ops=relu+sum mb1ic3ih31iw45oc20oh16ow23kh3kw3sh2sw2ph1pw1",
]  # fmt: skip


@pytest.mark.sampled(24, "name")
@pytest.mark.parametrize("name", dict.fromkeys((BEST, "avx512", "avx2", "generic")))
@pytest.mark.parametrize("line", LINES)
def test_lanes_lie_along_rows_of_pixels(line: str, name: str) -> None:
    if name not in TARGETS:
        pytest.skip(f"this machine lacks {name}")
    problem, target = parse_problem(f"{FIRST} {line}"), TARGETS[name]
    config = default_config(problem, target)
    if target.vector_bits == 512:
        assert config.lane in ("ow", "iw")
    arrays = random_arrays(problem)
    check_result(problem, Compiled(problem, build_artifact(problem, config, target))(arrays), expected(problem, arrays))


@pytest.mark.parametrize(
    "line", ["g3mb1ic3ih7oc3oh7kh3ph1", "g3mb1ic3ih33oc3oh17kh5sh2ph2", "mb1ic3ih40oc9oh20kh3sh2ph1"]
)
@pytest.mark.parametrize("name", dict.fromkeys((BEST, "avx2")))
def test_absent_pixels_meet_no_infinite_weight(line: str, name: str) -> None:
    problem, target = parse_problem(f"{FIRST} {line}"), TARGETS[name]
    config = default_config(problem, target)
    assert config.lane == "ow" and config.realise == "peel"
    arrays = random_arrays(problem)
    arrays["src"] = np.abs(arrays["src"]) + 1
    arrays["wei"][...] = np.inf
    assert (Compiled(problem, build_artifact(problem, config, target))(arrays)["dst"] == np.inf).all()


@pytest.mark.parametrize(
    ("line", "terms"),
    [
        ("mb2ic6ih7oc26oh7kh1", (("ic", 2),)), ("--dir=BWD_D g2mb1ic26ih11oc12oh11kh1", (("oc", 2),)),
        ("mb1ic5ih9oc30oh9kh1", ()),
    ],
)  # fmt: skip
def test_steps_read_two_channels_of_pixels(line: str, terms: tuple[tuple[str, int], ...]) -> None:
    problem, target = parse_problem(f"{FIRST} {line}"), TARGETS[BEST]
    config = default_config(problem, target)
    assert config.lane in ("oh_ow", "ih_iw") and config.tiles_at("k_step") == terms
    arrays = random_arrays(problem)
    check_result(problem, Compiled(problem, build_artifact(problem, config, target))(arrays), expected(problem, arrays))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", LINES[::3])
def test_threads_copy_rows_of_their_own(line: str) -> None:
    problem, target = parse_problem(f"{FIRST} {line}"), TARGETS[BEST]
    config = default_config(problem, target, threads=2)
    assert config.threads == 2
    arrays = random_arrays(problem)
    check_result(problem, Compiled(problem, build_artifact(problem, config, target))(arrays), expected(problem, arrays))
