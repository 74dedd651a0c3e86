"""The features of kernels of devices, and their cycles by the prices of a machine: one function for every target."""

from __future__ import annotations

import pytest

from convsmith.ir.intern import interning
from convsmith.machine.registry import device_targets, target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.hardware_choice import EngineTile
from convsmith.schedule.packed_operands import packed_statement
from convsmith.schedule.plan import Plan, decided
from convsmith.statement.views import statement
from convsmith.tune.costs import features
from convsmith.tune.costs.features import Features, cycles, time
from convsmith.tune.devices.device import device_candidates, device_config, expected_cycles
from convsmith.tune.devices.device_features import (
    Loads,
    engine_features,
    kernel_features,
    loads_of,
    residing,
    thread_features,
)

PLAIN = "--stag=axb --dtag=axb mb1ic16ih9oc24oh9kh3ph1"
LAYER = "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb4ic64ih14oc64oh14kh3ph1"
LEVELS = [machine.name for machine in device_targets()]


def features_of(line: str, level: str) -> list[tuple[Features, float]]:
    """Return the features of the candidates without a copy engine, with the cycles that the choice expects."""
    problem, machine, found = parse_problem(line).canonical(), target(level), []
    with interning():
        for config, expected in device_candidates(problem, machine).items():
            if config.realise == "hardware":
                continue
            made = decided(problem, config.changed(split=()), machine)
            assert isinstance(made, Plan)
            k = made.main
            st = packed_statement(k.statement, k.config, machine)
            found.append((kernel_features(st, k.loops, k.config, k.nest, machine, k.shared), expected))
    return found


@pytest.mark.sampled(6, "line")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("line", [PLAIN, LAYER])
def test_each_event_of_a_candidate_has_a_price_and_the_choice_adds_them_up(line: str, level: str) -> None:
    found, machine = features_of(line, level), target(level)
    assert found
    for counted, expected in found:
        assert cycles(counted, machine) == expected > 0
        assert sum(time(counted, machine).values()) == pytest.approx(expected)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("level", LEVELS)
def test_a_search_expects_the_cycles_that_the_choice_expects(level: str) -> None:
    problem, machine = parse_problem(LAYER).canonical(), target(level)
    with interning():
        known = device_candidates(problem, machine)
        assert known == {config: expected_cycles(problem, config, machine) for config in known}
        wrong = next(iter(known)).changed(order=("none",), realise="mask")
        assert expected_cycles(problem, wrong, machine) == float("inf")


def test_twice_the_price_of_barriers_adds_what_barriers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features hold no price: another price of one event changes its cause alone."""
    machine = target("sm_80")
    counted = thread_features(3, 64, 0, "shared", Loads(8, 2, 0), (("shared_copy", 4),), True)
    before = time(counted, machine)
    monkeypatch.setitem(machine.prices, "step_barriers", 2 * machine.prices["step_barriers"])
    after = time(counted, machine)
    assert after == {**before, "barriers": 2 * before["barriers"]} and before["products"] == 3 * 64


def test_straight_code_loads_and_converts_an_element_once_for_all_taps() -> None:
    """Four pixels of seven taps read ten columns, or thirteen where pixels are two columns apart."""
    for stride, columns in ((1, 10), (2, 13)):
        line = f"--stag=axb --dtag=axb --dt=bf16 g8mb1ic8iw{16 * stride}oc8ow16kw7pw3"
        st = statement(parse_problem(f"{line}sw{stride}" if stride > 1 else line).canonical(), target("sm_80"))
        straight = {"g": 4, "ow": 4, "kw": 7}
        # A vector of half the longest access takes 0.625 of its time.
        assert [loads_of(st, v, straight, 4, 16) for v in st.factors] == [(0, 0.625 * n, 4 * n) for n in (columns, 7)]


def of_tile(columns: int, tile: tuple[int, int], buffers: int = 4) -> dict[str, float]:
    """Return the expected cycles by cause of 132 tiles of 16 steps, multiplied by an instruction of so many columns."""
    machine, st = target("sm_90a"), statement(parse_problem(LAYER).canonical(), target("sm_90a"))
    row = next(row for row in machine.instructions if row.name == f"wgmma_m64n{columns}k16_bf16")
    config = Config("sm_90a", "oc", buffers=buffers, instruction=row.name, shared=("src", "wei"), group=(("ow", 1),))
    return time(engine_features(EngineTile(config, row, tile, 132, 1, 16, 64), st, machine), machine)


def test_teams_store_beside_steps_and_share_the_port_of_shared_memory() -> None:
    """Two groups of warps of a team read 64 rows and 128 columns each, of 192 rows and columns that arrive."""
    machine, st = target("sm_90a"), statement(parse_problem(LAYER).canonical(), target("sm_90a"))
    row = next(row for row in machine.instructions if row.name == "wgmma_m64n128k16_bf16")
    config = Config("sm_90a", "oc", buffers=4, instruction=row.name, realise="hardware", shared=("src", "wei"),
                    group=(("ow", 128), ("oc", 128), ("ic", 64)))  # fmt: skip
    ways = [config, config.changed(teams=2)]
    alone, teams = (engine_features(EngineTile(x, row, (128, 128), 264, 1, 16, 64), st, machine) for x in ways)
    port = [{n: rows for _, x in step.causes for n, rows in x}["engine_port"] for step in (alone[0], teams[0])]
    assert port == [0, 2 * (64 + 128) + 128 + 128]
    assert [x.times for x in alone[1:]] == [2] and [x.times for x in teams[1:]] == [0, 1]


@pytest.mark.parametrize("parts", (1, 2, 4))
def test_the_last_part_of_a_result_leaves_beside_steps(parts: int) -> None:
    """Of two tiles of 128 x 128, the first one's last part leaves during the 16 steps of the second."""
    machine, st = target("sm_90a"), statement(parse_problem(LAYER).canonical(), target("sm_90a"))
    row = next(row for row in machine.instructions if row.name == "wgmma_m64n128k16_bf16")
    config = Config("sm_90a", "oc", buffers=4, instruction=row.name, realise="hardware", store_parts=parts,
                    shared=("src", "wei", "dst"), group=(("ow", 128), ("oc", 128), ("ic", 64)))  # fmt: skip
    found = engine_features(EngineTile(config, row, (128, 128), 264, 1, 16, 64), st, machine)
    stores = [x.times * sum(n for _, events in x.causes for name, n in events if name == "engine_result")
              for x in found]  # fmt: skip
    sums = 128 * 128
    assert stores == [sums // parts, 2 * (sums - sums // parts), sums // parts]


def test_groups_of_a_cluster_read_shared_rows_once() -> None:
    """A pair along rows shares the weights, one along columns the pixels: of 64 and 128 rows, half of those remain."""
    machine, st = target("sm_90a"), statement(parse_problem(LAYER).canonical(), target("sm_90a"))
    assert machine.device is not None and machine.device.engine is not None
    row = next(row for row in machine.instructions if row.name == "wgmma_m64n128k16_bf16")
    config = Config("sm_90a", "oc", buffers=4, instruction=row.name, realise="hardware", shared=("src", "wei"),
                    group=(("ow", 64), ("oc", 128), ("ic", 64)))  # fmt: skip
    alone = EngineTile(config, row, (64, 128), 6, 1, 16, 64, around=(3, 2))
    pairs = [alone.clustered(side, 2) for side in (0, 1)]
    assert [(x.groups, x.sharing) for x in (alone, *pairs)] == [(6, (1, 1)), (8, (1, 2)), (6, (2, 1))]
    counted = []
    for x in (alone, *pairs):
        step, _ = engine_features(x, st, machine)
        counted.append({name: n for _, events in step.causes for name, n in events})
    assert [x["engine_row"] for x in counted] == [192, 128, 160]
    assert [x["engine_arrival"] for x in counted] == [0, 192, 192]
    assert not counted[0]["engine_meeting"] and all(x["engine_meeting"] == x["engine_wait"] for x in counted[1:])
    with interning():
        assert device_config(parse_problem(LAYER.replace("mb4ic64ih14oc64oh14", "mb32ic256ih14oc256oh14")), machine
                             ).tiles_at("cluster") == (("mb_oh_ow", 2),)  # fmt: skip


def test_a_step_takes_as_long_as_its_slowest_part() -> None:
    """Factors that small instructions read more often, products of a large tile, copies of few slots."""
    wide, narrow = of_tile(64, (64, 64), 8), of_tile(16, (64, 64), 8)
    assert "loads" in narrow and sum(wide.values()) < sum(narrow.values())
    assert "products" in of_tile(256, (128, 256))
    few, many = of_tile(128, (64, 128), 2), of_tile(128, (64, 128), 8)
    assert "latency of copies" in few and sum(few.values()) > 1.5 * sum(many.values())


def test_slots_and_threads_bound_the_groups_of_a_unit() -> None:
    machine = target("sm_90a")
    st = statement(parse_problem(LAYER).canonical(), machine)
    row = next(row for row in machine.instructions if row.name == "wgmma_m64n64k16_bf16")
    for tile, buffers, groups in (((64, 64), 4, 3), ((64, 64), 8, 1), ((256, 64), 2, 1), ((64, 64), 2, 4)):
        config = Config("sm_90a", "oc", buffers=buffers, instruction=row.name, shared=("src",), group=(("ow", 1),))
        assert residing(EngineTile(config, row, tile, 132, 1, 16, 64), st, machine) == groups
    config = Config("sm_90a", "oc", buffers=2, instruction=row.name, shared=("src", "dst"), group=(("ow", 1),))
    assert residing(EngineTile(config, row, (128, 128), 132, 1, 16, 64), st, machine) == 1


def test_more_slots_copy_no_more_bytes() -> None:
    problem, machine = parse_problem(LAYER).canonical(), target("sm_80")
    with interning():
        two, three = (
            next(c for c in device_candidates(problem, machine) if c.instruction).changed(copies="async", buffers=n)
            for n in (2, 3)
        )
        first, second = (expected_cycles(problem, x, machine) for x in (two, three))
        assert 0 < first <= second < 1.01 * first  # groups with more slots are fewer on a unit


def test_instructions_on_fragments_cost_what_their_rate_says() -> None:
    """Of f16 they do 16 multiply-adds on sm_80 in the time of one of a thread, of bytes 32."""
    prices = target("sm_80").prices
    assert prices["mma_m16n8k16_bf16"] == 1 / 16 and prices["mma_m16n8k32_s8"] == 1 / 32


@pytest.mark.sampled(11)
@pytest.mark.parametrize("level", LEVELS)
def test_one_function_times_the_kernels_of_devices(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each cycle costs a thousand, all candidates do: no other code has cycles of its own."""
    problem, machine = parse_problem(LAYER).canonical(), target(level)
    before = device_candidates(problem, machine)
    prices = {name: 1000 * price for name, price in machine.prices.items()}
    monkeypatch.setattr(features, "time", lambda counted, *_: dearer(counted, prices))
    after = device_candidates(problem, machine)
    assert list(after) == list(before)
    assert list(after.values()) == pytest.approx([1000 * x for x in before.values()])
    assert device_config(problem, machine) in before


class _Priced:
    """A machine of which only the prices are known."""

    def __init__(self, prices: dict[str, float]) -> None:
        self.prices = prices


def dearer(counted: Features, prices: dict[str, float]) -> dict[str, float]:
    return time(counted, _Priced(prices))  # type: ignore[arg-type]
