"""The prices of the events that models count, derived from the costs and the facts of a machine."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from convsmith.machine.base import Machine
    from convsmith.machine.device import Device

__all__ = ["LIMITS", "prices_of"]

LIMITS = frozenset({
    "temporaries", "hidden", "hidden_far", "page", "pages", "pages_near", "result_moves", "reload", "memory_byte",
    "thread_start", "weights_kept", "images_near", "scattered_rows", "scalable_units", "result_near", "weights_ahead",
    "prefetched", "prefetched_transforms", "prefetched_pixels", "prefetched_passes", "prefetched_results",
    "fragment_kept", "page_turn", "fetched_pixels", "fetched_blocks", "fetched_weights", "waited", "convert", "meeting",
    "pack_call", "inner_taps", "weights_byte", "blocks_kept",
    "code_kept", "instruction", "added_ways", "byte_product", "masked_word", "images_far", "streams",
    "weights_near", "long_epilogue", "word_transform", "turned_pages", "streamed_weights", "channel_line",
})  # fmt: skip
"""Costs that decide which nests and features a model counts; some of them are prices of events as well."""

MULTIPLY_ADDS = 64
"""Multiply-adds of f32 that a unit of a device is assumed to compute in a cycle if its rate is unknown."""
MEMORY_BYTES = 8
"""Bytes of memory that a unit of a device is assumed to read in a cycle if the rate is unknown."""


def prices_of(machine: Machine) -> dict[str, float]:
    """Return the price of each event by its name: cycles, or a ratio of times for what slows other events.

    Each cost that is a number is a price. The others are derived:

    - an instruction that is slower than a multiply-add, by its name;
    - ``l1`` and ``l2``, loads of a vector from a cache; ``beyond_line`` and ``streamed_line``, of a vector from
      beyond the second-level cache, once or again and again; ``waited_line`` and, from that cache,
      ``waited_near_line``, for which vectors of pixels wait;
    - ``NAME.arriving``, by which a load takes longer from a line that is still in flight;
    - ``l2_byte``, ``streamed_byte`` and ``streamed_pixels_byte``, the delivery of a byte by the second-level cache, or
      from beyond it in addition; ``exposed_near_byte``, ``exposed_near_run`` and so on, the part of it that windows
      wait for;
      ``transform_far.USE`` and ``transform_prefetched.USE``, the delivery of a byte for a use by a transform;
      ``refill_byte``, its delivery during arithmetic;
    - ``page_turn_near``, a store to another page that only the first table of addresses lacks;
    - ``between_cores_byte``, the load of a byte that another core has written;
    - ``exposed_sum`` and ``spilled``, an accumulator beyond the hidden ones and a vector that registers do not hold.

    A device has the prices of :func:`_of_device` as well.
    """
    costs = machine.costs
    prices = {x.name: getattr(costs, x.name) for x in fields(costs) if x.type in ("float", "int")}
    prices |= dict(costs.slow)
    near, far, rate = machine.load(machine.l1), machine.load(machine.l2), machine.l2.rate
    loads = {
        "l1": near, "l2": far, "broadcast": costs.broadcast, "lane_load": costs.lane_load, "pack": costs.pack,
        "broadcast_pair": costs.broadcast_pair or costs.broadcast, "pack_channels": costs.pack_channels or costs.pack,
    }  # fmt: skip
    prices |= loads | {f"{name}.arriving": price * (costs.arriving - 1) for name, price in loads.items()}
    rates = {"transform_far": costs.transform_far, "transform_prefetched": costs.transform_prefetched}
    line = costs.multiply_add * costs.beyond / rate
    prices |= {f"{name}.{use}": line / x for name, every in rates.items() for use, x in every._asdict().items()}
    prices |= {
        "beyond_line": far * costs.beyond,
        "waited_line": far * costs.beyond * costs.waited,
        "waited_near_line": far * costs.waited_near,
        "streamed_line": far * costs.streamed,
        "l2_byte": 1 / rate,
        "streamed_byte": (costs.streamed - 1) / rate,
        "streamed_pixels_byte": (costs.streamed_pixels - 1) / rate,
        "exposed_near_byte": costs.exposed_near / rate,
        "exposed_near_run": costs.exposed_near * costs.run / rate,
        "exposed_evicted_run": costs.exposed_near * costs.evicted_run / rate,
        "exposed_far_byte": costs.exposed_far / rate,
        "exposed_far_run": costs.exposed_far * costs.far_run / rate,
        "refill_byte": 1 / costs.refill,
        "page_turn_near": costs.page_near * costs.page_turn,
        "between_cores_byte": 1 / costs.between_cores,
        "exposed_sum": costs.exposed * costs.multiply_add,
        "spilled": costs.spill * costs.multiply_add,
    }
    return prices if machine.device is None else prices | _of_device(machine, machine.device)


def _of_device(machine: Machine, device: Device) -> dict[str, float]:
    """Return the prices of the events on a device, in multiply-adds of a thread; those of warps in multiply-adds of
    all their lanes.

    - ``thread_product``, ``test``, ``step_barriers``, ``shared_copy``, ``placed_copy``, ``conversion``;
      ``shared_element`` and ``shared_vector``, loads of a thread, and those from global memory; ``arrival``,
      ``arriving_round`` and ``arriving_byte``, the time until a copy arrives;
    - ``warp_shared_byte``, ``warp_global_byte``, ``warp_message``, ``warp_barrier`` and ``warp_store``, and an
      instruction on fragments by its name, for each of its multiply-adds; ``warp_load``, the wait for factors behind a
      barrier, and ``warp_issue``, the issue of an instruction;
    - in cycles, ``engine_product``, a multiply-add of 16-bit factors that a copy engine brings; ``engine_read`` and
      ``engine_row``, a row that a group of warps reads, and one that is copied, whose arrival is ``engine_arrival``;
      ``engine_wait``, ``engine_row_wait`` and ``engine_meeting``, the latency of a step's copies, that of a row, and
      that of a cluster; ``engine_port``, a row that shared memory gives or takes; ``engine_result`` and
      ``engine_staged``.
    - ``thread_launch``, ``thread_stored_byte`` and ``thread_cached_byte``: the launch of one more kernel, and a byte
      that all units store or load, in memory or in the last cache; with ``engine_``, in cycles.
    """
    costs, engine = device.costs, device.engine
    loads = {"shared": costs.shared_load, "global": costs.global_load}
    rows = (row for row in machine.instructions if row.result.scope == "fragment")
    prices = {row.name: 1 / machine.fragment_rate(row) for row in rows}
    prices |= {f"{memory}_element": price for memory, price in loads.items()}
    prices |= {f"{memory}_vector": price * costs.vector_load for memory, price in loads.items()}
    prices |= {"thread_product": 1.0, "test": costs.test, "step_barriers": costs.barriers}
    prices |= {"shared_copy": costs.shared_copy, "placed_copy": costs.placed_copy, "conversion": costs.conversion}
    units = device.units
    prices["arrival"] = costs.arrival * units.multiply_adds
    prices["arriving_round"] = costs.arriving_round * units.multiply_adds
    rate = units.memory_bytes * costs.cached
    prices["arriving_byte"] = units.multiply_adds * units.count / rate if rate else 0.0
    prices |= {"warp_shared_byte": 1 / costs.warp_shared, "warp_global_byte": 1 / costs.warp_global}
    prices |= {"warp_load": costs.warp_load, "warp_issue": costs.warp_issue}
    prices |= {"warp_barrier": costs.warp_barrier, "warp_store": costs.warp_store, "warp_message": costs.warp_message}
    if engine is not None:
        prices |= {"engine_product": 1 / device.units.of_fragments, "engine_wait": engine.latency}
        prices |= {"engine_meeting": engine.meeting, "engine_arrival": engine.row_arrival, "engine_port": engine.port}
        prices |= {"engine_row_wait": engine.row_latency, "engine_read": engine.row_read}
        prices |= {"engine_row": engine.row_copy, "engine_result": engine.result}
        prices["engine_staged"] = engine.staged
    units = device.units
    moved = units.memory_bytes or MEMORY_BYTES * units.count
    for unit, rate in (("thread", units.multiply_adds or MULTIPLY_ADDS), ("engine", 1.0)):
        stored = rate / moved
        prices |= {f"{unit}_launch": costs.launch * rate, f"{unit}_stored_byte": stored}
        prices[f"{unit}_cached_byte"] = stored / costs.cached
    return prices
