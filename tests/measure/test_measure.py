"""Medians of ratios within a round, alternation, and peers."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from byte_sums import skip_unless_exact

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.machine.registry import host_targets
from convsmith.measure import onednn_chains
from convsmith.measure import timing as measure_module
from convsmith.measure.levels import hold
from convsmith.measure.onednn_library import library_on
from convsmith.measure.peer import stages_for_peers
from convsmith.measure.peers import PEERS, installed, make_peer
from convsmith.measure.timing import Sampler, Spread, alternate, geometric_mean, measure, spread, wait_until_idle
from convsmith.measure.xnnpack import _padding
from convsmith.problem.conv import Conv
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.problem.reference import reference


def test_a_sample_repeats_the_call_until_it_takes_long_enough() -> None:
    calls = []
    sampler = Sampler(lambda: calls.append(0), seconds=1e-3)
    before = len(calls)
    assert sampler.repeats > 100 and 0 < sampler() < 1e-4
    assert len(calls) - before == 2 * sampler.repeats  # as many calls before the sample


@pytest.mark.parametrize("seconds", [1e-3, 4e-3])
def test_a_sample_is_seconds_of_a_call(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """On a clock of its own, on which a call takes 10 us."""
    now = 0.0

    def call() -> None:
        nonlocal now
        now += 1e-5

    monkeypatch.setattr(measure_module, "time", SimpleNamespace(perf_counter=lambda: now, process_time=lambda: now))
    sampler = Sampler(call, seconds)
    assert sampler.repeats == pytest.approx(seconds / 1e-5, abs=1)
    assert sampler() == pytest.approx(1e-5)


def test_subjects_take_turns_at_being_first() -> None:
    order: list[str] = []
    subjects = {name: (lambda name=name: order.append(name) or 1.0) for name in "abc"}  # type: ignore[misc]
    taken = alternate(subjects, rounds=3, settle=lambda: None)
    assert "".join(order) == "abcacbcab"
    assert taken == {name: [1.0] * 3 for name in "abc"}


def test_the_median_of_ratios_is_taken_within_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slows down by half in the second round changes times, not ratios."""
    slow = [1.0, 2.0, 1.0]

    class Fake:
        def __init__(self, call: object) -> None:
            self.seconds, self.turn, self.busy_cpus = call, -1, 0.5  # type: ignore[var-annotated]

        def __call__(self) -> float:
            self.turn += 1
            return self.seconds() * slow[self.turn]  # type: ignore[no-any-return,operator]

    monkeypatch.setattr("convsmith.measure.timing.Sampler", Fake)
    turn = iter(slow)
    found = measure(lambda: 1e-3, 50e6, lambda: 100 / next(turn), {"other": lambda: 3e-3}, rounds=3)
    assert found.of_peak == Spread(0.5, 0.5, 0.5)
    assert found.peers["other"].speedup.median == pytest.approx(3)
    assert found.seconds.median == 1e-3 and found.seconds.high > 1e-3
    assert found.gflops.median == pytest.approx(50)
    assert found.cpu_share == 0.5


@pytest.mark.parametrize(
    "threads,cpus,busy,share",
    [(1, 2, 1.0, 1.0), (1, 2, 0.25, 0.25), (2, 2, 1.0, 0.5), (2, 2, 2.0, 1.0), (8, 2, 1.5, 0.75)],
)
def test_the_share_of_cpu_time(
    monkeypatch: pytest.MonkeyPatch, threads: int, cpus: int, busy: float, share: float
) -> None:
    """On a clock of its own: each second of a call, the process gets `busy` seconds of CPU time."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def call() -> None:
        sleep(1e-3)

    clock = SimpleNamespace(perf_counter=lambda: now, process_time=lambda: now * busy, sleep=sleep)
    monkeypatch.setattr(measure_module, "time", clock)
    monkeypatch.setattr(measure_module, "available_cpus", lambda: cpus)
    sampler = Sampler(call)
    assert sampler.busy_cpus == 0
    assert measure(call, 1, rounds=2, threads=threads).cpu_share == pytest.approx(share)


@pytest.mark.parametrize("spins", [0.0, 0.05, 10.0])
def test_a_sample_waits_for_threads_that_spin(monkeypatch: pytest.MonkeyPatch, spins: float) -> None:
    """On a clock of its own: until ``spins`` seconds have passed, the process uses all the time there is."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(perf_counter=lambda: now, process_time=lambda: min(now, spins), sleep=sleep)
    monkeypatch.setattr(measure_module, "time", clock)
    wait_until_idle()
    assert now == pytest.approx(min(spins, measure_module.SETTLE_SECONDS), abs=2e-3)


def test_a_peak_may_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convsmith.measure.timing.SAMPLE_SECONDS", 1e-4)
    found = measure(lambda: sum(range(100)), 100, rounds=2)
    assert found.peak_gflops is None and found.of_peak is None and found.gflops.median > 0


def test_spread_and_geometric_mean() -> None:
    assert spread([3.0]) == Spread(3, 3, 3)
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3, 2, 4)
    assert Spread(3, 2, 4).scaled(2) == Spread(6, 4, 8)
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4)
    assert geometric_mean([]) is None


PLAIN = ("onnxruntime-nchwc", "onednn", "xnnpack", "ncnn")
"""Libraries that are compared on forward convolutions of images, without post-ops."""
IN_F32 = ("onnxruntime-nchwc", "xnnpack", "ncnn")
"""Those of them that are compared in f32 only."""
FORWARD = ("onnxruntime", "openvino", *IN_F32)
"""Libraries that are compared on forward convolutions only."""
ALL_BUT_TORCH = ("onednn", *FORWARD)
QUANTISED = (
    "--dt=u8:s8:u8 --attr-scales=src:common:0.5+wei:per_oc+dst:common:2 "
    "--attr-zero-points=src:common:3+dst:common:4 g2mb1ic4ih9oc6kh3ph1"
)
CANNOT = {
    "mb2ic4ih9oc6kh3ph1": {("onnxruntime-nchwc", "groups"), ("ncnn", "batch")},
    "mb1ic4ih9oc6kh3sh2ph1dh1": {("onnxruntime-nchwc", "groups"), ("xnnpack", "pads")},
    "--dir=FWD_B --attr-post-ops=relu g2mb1ic4iw9oc6kw3": {(name, "dir") for name in IN_F32},
    "--attr-post-ops=clip:0:6 mb1ic2id5oc3kd3pd1": {(name, "dir") for name in IN_F32},
    "mb1ic3ih8oc4oh4kh3sh2ph1": {("onnxruntime-nchwc", "groups")},
    "g2mb1ic4ih9oc6kh3ph1": {("onnxruntime-nchwc", "groups"), ("xnnpack", "groups")},
    "--attr-post-ops=relu:0.5 ic2ih4oc2kh1": {(name, "post-ops") for name in IN_F32},
    "--attr-post-ops=sum+relu mb1ic4ih9oc6kh3ph1": {(name, "post-ops") for name in ("openvino", *IN_F32)},
    QUANTISED: {(name, "attributes") for name in ("torch", *IN_F32)} | {("openvino", "types")},
    "--dt=bf16 ic2ih4oc2kh1": {(name, "types") for name in ("onnxruntime", "openvino", *IN_F32)},
    "--dt=f64 ic2ih4oc2kh1": {(name, "types") for name in ALL_BUT_TORCH},
    "--dir=BWD_D g2mb2ic4ih9oc6kh3ph1": {(name, "dir") for name in FORWARD},
    "--dir=BWD_W mb2ic4iw9oc6kw3pw1": {(name, "dir") for name in FORWARD},
    "--dt=u8:s8:s32 mb2ic4ih9oc6kh3ph1": {(name, "types") for name in ("torch", "openvino", *IN_F32)},
    "--dir=FWD_B --dt=bf16:bf16:f32 --bia-dt=f32 mb2ic4ih9oc6kh3ph1": {
        (name, "types") for name in ("torch", "onnxruntime", "openvino", *IN_F32)
    },
    "--matmul --bia-dt=f32 --attr-post-ops=relu 3x4x5:1x5x6": {(name, "dir") for name in ALL_BUT_TORCH},
    "g32mb2ic32ih7oc32oh9kh3ph2": {("xnnpack", "pads"), ("ncnn", "batch")},
    "g32mb2ic32ih8oc32oh4kh3sh2ph1": {("ncnn", "batch")},
    "--deconv --dir=FWD_B g2mb2ic4ih4oc6oh9kh3sh2dh1ph1": {(name, "deconv") for name in FORWARD},
}


EXCEEDING = "--dt=u8:s8:u8 --stag=axb --dtag=axb --attr-zero-points=src:common:3 mb1ic256ih6oc128oh6kh1"


def need(name: str) -> None:
    """Skip the test where a library is missing."""
    if not installed(name):
        pytest.skip(f"{name} is not installed")


@pytest.mark.sampled(4, "name", "line")
@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize(
    "line",
    [
        "mb2ic4ih9oc6kh3ph1", "mb1ic4ih9oc6kh3sh2ph1dh1", "--dir=FWD_B --attr-post-ops=relu g2mb1ic4iw9oc6kw3",
        "--attr-post-ops=clip:0:6 mb1ic2id5oc3kd3pd1", "mb1ic3ih8oc4oh4kh3sh2ph1",
        "--attr-post-ops=relu:0.5 ic2ih4oc2kh1", "--dt=bf16 ic2ih4oc2kh1", "--dt=f64 ic2ih4oc2kh1",
        "--dir=FWD_B --dt=bf16:bf16:f32 --bia-dt=f32 mb2ic4ih9oc6kh3ph1", "--dir=BWD_D g2mb2ic4ih9oc6kh3ph1",
        "--dir=BWD_W mb2ic4iw9oc6kw3pw1", "--dt=u8:s8:s32 mb2ic4ih9oc6kh3ph1",
        "--matmul --bia-dt=f32 --attr-post-ops=relu 3x4x5:1x5x6", "g32mb2ic32ih7oc32oh9kh3ph2",
        "g32mb2ic32ih8oc32oh4kh3sh2ph1", "--dir=FWD_B g16mb1ic16ih9oc16oh9kh3ph1", "g16mb1ic16ih9oc16oh5kh3sh2ph1",
        "g32mb1ic32ih9oc32oh7kh3ph0", "g16mb1ic16ih9iw12oc16oh9ow12kh3kw3ph2pw2dh1dw1", "g16mb1ic16ih9oc16oh9kh5ph2",
        "--deconv --dir=FWD_B g2mb2ic4ih4oc6oh9kh3sh2dh1ph1",
        "--attr-post-ops=sum+relu mb1ic4ih9oc6kh3ph1", QUANTISED,
    ],
)  # fmt: skip
def test_peers_compute_the_problem(name: str, line: str) -> None:
    need(name)
    problem = parse_problem(line)
    arrays = random_arrays(problem)
    if name == "onednn":
        skip_unless_computed(line)
    try:
        peer = make_peer(name, problem, arrays, 1)
    except UnsupportedError as error:
        assert (name, error.code) in CANNOT[line]
        return
    assert (name not in (who for who, _ in CANNOT.get(line, ()))) and len(problem.outputs) == 1
    peer.call()
    truth = reference(problem, arrays, np.float32)[problem.outputs[0].name]
    error = PEERS[name].error * float(np.abs(truth).max())
    result = peer.result().reshape(truth.shape).astype(np.float64)
    np.testing.assert_allclose(result, truth.astype(np.float64), rtol=0, atol=error)


@pytest.mark.parametrize("name", ["torch", "onnxruntime"])
def test_peers_compute_in_f16(name: str) -> None:
    need(name)
    problem = parse_problem("--dt=f16 mb1ic4ih9oc6kh3ph1")
    arrays = random_arrays(problem)
    peer = make_peer(name, problem, arrays, 1)
    peer.call()
    np.testing.assert_array_equal(peer.result(), reference(problem, arrays, np.float32)["dst"])


CHAINS = {
    "inverted residual": (
        "--stag=axb --attr-post-ops=clip:0:6 mb1ic8ih9oc32kh1 -> --dir=FWD_B --attr-post-ops=clip:0:6 "
        "g32mb1ic32ih9oc32kh3ph1 -> --dtag=axb --attr-post-ops=sum:src mb1ic32ih9oc8kh1"
    ),
    "stride": "mb1ic8ih9oc32kh1 -> --attr-post-ops=relu g32mb1ic32ih9oc32kh3sh2ph1 -> mb1ic32ih5oc16kh1",
    "windows": "--stag=axb --dir=FWD_B mb1ic8ih9oc16kh3ph1 -> --dtag=axb --attr-post-ops=relu mb1ic16ih9oc8kh3ph1",
    "stride from the end": "mb1ic8ih8oc32kh1 -> --attr-post-ops=relu g32mb1ic32ih8oc32kh3sh2ph1 -> mb1ic32ih4oc16kh1",
    "depthwise first": "--stag=axb g16mb1ic16ih9oc16kh3ph1 -> --dtag=axb mb1ic16ih9oc24kh1",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("line", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("name", [name for name, library in PEERS.items() if library.chains])
def test_peers_compute_chains(name: str, line: str) -> None:
    need(name)
    chain = parse_problem(line)
    arrays = random_arrays(chain)
    peer = make_peer(name, chain, arrays, 1)
    peer.call()
    np.testing.assert_array_equal(peer.result(), reference(chain, arrays, np.float32)["dst"])


@pytest.mark.parametrize("line", ["inverted residual", "stride"])
@pytest.mark.parametrize("last", [True, False])
def test_onednn_runs_a_depthwise_stage_as_post_op(line: str, last: bool) -> None:
    need("onednn")
    chain = parse_problem(CHAINS[line])
    arrays = random_arrays(chain)
    units = onednn_chains._units(stages_for_peers(chain, arrays))
    assert [unit.depthwise is not None for unit in units] == [True, False]
    peer = onednn_chains._sequence(library_on(1), units, arrays["src"], last)
    peer.call()
    np.testing.assert_array_equal(peer.result(), reference(chain, arrays, np.float32)["dst"])


BYTES = {
    "stride": (
        "--stag=axb --dt=u8:s8:u8 --attr-post-ops=relu+linear:0.05 mb1ic8ih9oc32kh1 -> --dt=u8:s8:u8 "
        "--attr-post-ops=relu+linear:0.05 g32mb1ic32ih9oc32kh3sh2ph1 -> --dtag=axb --dt=u8:s8:u8 mb1ic32ih5oc16kh1"
    ),
    "s8": (
        "--stag=axb --dt=s8:s8:s8 --attr-post-ops=linear:0.05 mb1ic8ih8oc32kh1 -> --dt=s8:s8:s8 "
        "--attr-post-ops=linear:0.05 g32mb1ic32ih8oc32oh4kh3sh2ph1 -> --dtag=axb --dt=s8:s8:s8 mb1ic32ih4oc16kh1"
    ),
    "inverted residual": (
        "--stag=axb --dt=u8:s8:u8 --attr-post-ops=relu+linear:0.05 mb1ic8ih9oc32kh1 -> --dt=u8:s8:u8 "
        "--attr-post-ops=relu+linear:0.05 g32mb1ic32ih9oc32kh3ph1 -> --dtag=axb --dt=u8:s8:u8 "
        "--attr-post-ops=linear:0.5+sum:src mb1ic32ih9oc8kh1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("line", BYTES)
@pytest.mark.parametrize("name", ["onnxruntime", "onednn", "xnnpack"])
def test_peers_compute_chains_of_bytes(name: str, line: str) -> None:
    need(name)
    chain = parse_problem(BYTES[line])
    arrays = random_arrays(chain)
    if line == "inverted residual" and name != "onednn":
        with pytest.raises(UnsupportedError, match="rounds bytes once"):
            make_peer(name, chain, arrays, 1)
        return
    if name == "onednn":
        skip_unless_exact()
    peer = make_peer(name, chain, arrays, 1)
    peer.call()
    np.testing.assert_array_equal(peer.result(), reference(chain, arrays, np.float32)["dst"])


@pytest.mark.parametrize("name", [name for name, library in PEERS.items() if library.chains])
def test_peers_say_which_stage_types_they_lack(name: str) -> None:
    need(name)
    chain = parse_problem("--dt=bf16:bf16:f32 mb1ic8ih9oc32kh1 -> --dt=f32:bf16:f32 mb1ic32ih9oc8kh1")
    with pytest.raises(UnsupportedError, match=name) as caught:
        make_peer(name, chain, random_arrays(chain), 1)
    assert caught.value.code == "types"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", PEERS)
def test_what_a_call_needs_lives_as_long_as_the_call(name: str) -> None:
    need(name)
    problem = parse_problem("g16mb1ic16ih9oc16oh9kh3ph1")
    call = make_peer(name, problem, random_arrays(problem), 1).call
    gc.collect()
    others = [np.ones(1296, np.float32) for _ in range(100)]
    for _ in range(3):
        call()
    assert all((x == 1).all() for x in others)


@pytest.mark.parametrize(
    "name,line,code",
    [
        ("torch", "mb1ic2ih8oc2oh8kh2ph0", "pads"), ("onnxruntime", "--deconv ic2ih4oc2kh1", "deconv"),
        ("torch", "--deconv --dir=BWD_D ic2ih4oc2kh1", "pads"),
        ("torch", "--attr-post-ops=tanh ic2ih4oc2kh1", "post-ops"), ("torch", "--dt=u8:s8:f32 ic2ih4oc2kh1", "types"),
        ("onnxruntime", "--attr-scales=src:common:2 ic2ih4oc2kh1", "attributes"),
        ("onnxruntime", "--dir=BWD_D ic2ih4oc2kh1", "dir"), ("onnxruntime", "--dt=bf16 ic2ih4oc2kh1", "types"),
        ("onnxruntime", "--dir=FWD_B --dt=u8:s8:s32 ic2ih4oc2kh1", "types"),
    ],
)  # fmt: skip
def test_what_a_library_cannot_do_is_said(name: str, line: str, code: str) -> None:
    need(name)
    problem = parse_problem(line)
    with pytest.raises(UnsupportedError) as caught:
        make_peer(name, problem, random_arrays(problem), 1)
    assert caught.value.code == code


@pytest.mark.sampled(2, "name", "option")
@pytest.mark.parametrize("option", ["--attr-scales=wei:common:2", "--attr-zero-points=src:common:2 --dt=u8:s8:s32"])
@pytest.mark.parametrize("name", [name for name in PEERS if name != "onednn"])
def test_peers_without_scales_and_zero_points(name: str, option: str) -> None:
    need(name)
    problem = parse_problem(f"{option} mb1ic16ih4oc16kh1")
    with pytest.raises(UnsupportedError) as caught:
        make_peer(name, problem, random_arrays(problem), 1)
    assert caught.value.code in ("attributes", "types")


def skip_unless_computed(options: str) -> None:
    """Skip the test of a problem that oneDNN computes with AVX-512 alone."""
    if "bf16" in options and not any(t.name == "avx512" for t in host_targets()):
        pytest.skip("oneDNN computes bf16 with AVX-512 alone")


@pytest.mark.sampled(2, "tag", "options")
@pytest.mark.parametrize("tag", ["abx", "axb", "aBx16b"])
@pytest.mark.parametrize("options", ["", "--attr-post-ops=sum+relu", "--dt=bf16", "--dt=u8:s8:u8"])
def test_onednn_takes_and_returns_the_layouts_of_the_problem(options: str, tag: str) -> None:
    need("onednn")
    skip_unless_computed(options)
    problem = parse_problem(f"{options} --stag={tag} --dtag={tag} mb2ic32ih6oc48kh3ph1")
    arrays = random_arrays(problem)
    peer = make_peer("onednn", problem, arrays, 1)
    peer.call()
    truth = reference(problem, arrays, np.float32)["dst"]
    np.testing.assert_array_equal(peer.result().reshape(truth.shape), truth)


def test_no_process_ends_where_onednn_exceeds_its_memory() -> None:
    """With AMX, oneDNN 3.2 computes 36 pixels of bytes with zero points in tiles of 16, and writes 48."""
    need("onednn")
    program = f"""
from convsmith.measure.peers import make_peer
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
problem = parse_problem({EXCEEDING!r})
for _ in range(8):
    make_peer("onednn", problem, random_arrays(problem), 1).call()
"""
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "MALLOC_CHECK_": "3"}, check=True)


@pytest.mark.parametrize("tag", ["abx", "axb"])
@pytest.mark.parametrize(
    "line", ["--dir=BWD_D mb2ic32ih6oc48kh3ph1", "--dir=BWD_W mb2ic32ih6oc48kh3ph1", "--dir=BWD_W g2mb2ic32ih6oc48kh3"]
)
@pytest.mark.parametrize("dt", ["f32", "bf16"])
def test_onednn_takes_and_returns_gradients_in_the_layouts_of_the_problem(dt: str, line: str, tag: str) -> None:
    need("onednn")
    skip_unless_computed(dt)
    problem = parse_problem(f"--dt={dt} --stag={tag} --wtag={tag} --dtag={tag} {line}")
    arrays = random_arrays(problem)
    peer = make_peer("onednn", problem, arrays, 1)
    peer.call()
    (truth,) = reference(problem, arrays, np.float32).values()
    np.testing.assert_array_equal(peer.result().reshape(truth.shape), truth)


@pytest.mark.parametrize("level", ["avx2", "generic"])
def test_libraries_are_held_to_a_level(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")
    for name in names:
        monkeypatch.setenv(name, "")
    best = host_targets()[0].name
    assert hold(best, ("torch", "onednn", "onnxruntime")) == () and not os.environ["ONEDNN_MAX_CPU_ISA"]
    if level == best:
        return
    free = hold(level, ("torch", "onednn", "onnxruntime"))
    assert free == (("onnxruntime",) if level == "avx2" else ("torch", "onednn", "onnxruntime"))
    held = {"avx2": ("AVX2", "avx2", "AVX2"), "generic": ("", "", "")}[level]
    assert tuple(os.environ[name] for name in names) == held


@pytest.mark.parametrize(
    ("line", "padding"),
    [
        ("ic1iw9oc1ow9kw3pw1", (True, 1)), ("ic1iw9oc1ow7kw3pw0", (False, 1)), ("ic1iw8oc1ow4kw3sw2pw0", (True, 1)),
        ("ic1iw8oc1ow4kw3sw2pw1", (True, -1)), ("ic1iw9oc1ow9kw4pw1", (True, 1)), ("ic1iw9oc1ow9kw4pw2", (True, -1)),
        ("ic1iw9oc1ow9kw5pw0", None), ("ic1iw9oc1ow9kw5pw3", None),
    ],
)  # fmt: skip
def test_same_padding_of_xnnpack(line: str, padding: tuple[bool, int] | None) -> None:
    """TensorFlow has the odd pixel at the back; from the other end, it is at the front."""
    problem = parse_problem(line)
    assert isinstance(problem, Conv)
    if padding is None:
        with pytest.raises(UnsupportedError, match="padding that keeps the size"):
            _padding(problem)
    else:
        assert _padding(problem) == padding


def test_an_unknown_library_is_named() -> None:
    with pytest.raises(UsageError, match=f"'mkl': legal are {', '.join(PEERS)}"):
        installed("mkl")
