"""Deconvolutions and gradients of the source with a large stride and few channels in the result: lanes along phases."""

from __future__ import annotations

import pytest
from guarded import Compiled, check_result, expected

from convsmith.compiler.driver import build_artifact
from convsmith.machine.registry import host_targets
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.tune.candidates import default_config

TARGETS = {t.name: t for t in host_targets()}
BEST = next(iter(TARGETS))
LINES = [
    "--deconv mb1ic17iw5oc1ow192kw64sw32pw0",
    "--deconv mb2ic5iw6oc1ow183kw50sw32pw16",
    "--deconv --stag=axb --dtag=axb mb1ic9iw4oc2ow96kw48sw24pw12",
    "--deconv --stag=axb --dtag=axb --attr-post-ops=relu mb1ic8ih3iw3oc3oh12ow24kh4kw8sh4sw8",
    "--deconv --dtag=axb mb1ic8ih9iw9oc5oh68ow68kh16kw16sh8sw8ph6pw6",
    "--deconv mb1ic3id2ih3iw2oc2od4oh6ow34kd2kh2kw17sd2sh2sw17",
    "--deconv --dt=u8:s8:s32 --attr-zero-points=src:common:3+wei:common:2 mb1ic6iw5oc1ow100kw40sw20",
    "--deconv --dir=FWD_B --dt=bf16 g2mb1ic6iw5oc2ow103kw40sw20pw3",
    "--deconv mb1ic7iw3oc1ow20kw7sw9",
    "--dir=BWD_D mb2ic1iw100oc9ow4kw40sw20pw0",
    "--dir=BWD_D mb1ic3ih35iw35oc17oh2ow2kh16kw16sh16sw16ph0pw0",
    "--dir=BWD_D --stag=axb --dtag=axb mb1ic3ih35iw35oc17oh2ow2kh16kw16sh16sw16ph0pw0",
    "--dir=BWD_D mb1ic1ih9iw28oc9oh5ow1kh5kw28",
    "--dir=BWD_D --stag=axb --dtag=axb mb1ic2ih9iw20oc9oh5ow1kh5kw24pw2",
    "--dir=BWD_D --dt=f16 mb1ic1iw17oc3ow1kw17",
]  # fmt: skip


@pytest.mark.sampled(8, "isa")
@pytest.mark.parametrize("isa", dict.fromkeys((BEST, "generic")))
@pytest.mark.parametrize("line", LINES)
def test_lanes_lie_along_phases(line: str, isa: str) -> None:
    problem, target = parse_problem(line), TARGETS[isa]
    config = default_config(problem, target)
    assert config.phases and config.lane.startswith("rw")
    arrays = random_arrays(problem)
    check_result(problem, Compiled(problem, build_artifact(problem, config, target))(arrays), expected(problem, arrays))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("line", LINES[::4])
def test_threads_share_phases(line: str) -> None:
    problem, target = parse_problem(line), TARGETS[BEST]
    config = default_config(problem, target, threads=2)
    assert config.phases and config.threads == 2
    arrays = random_arrays(problem)
    check_result(problem, Compiled(problem, build_artifact(problem, config, target))(arrays), expected(problem, arrays))
