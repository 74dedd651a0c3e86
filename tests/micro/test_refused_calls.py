"""Calls of micro-kernels that would read or write beyond an array, or compute nonsense: each is one clear error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.frontend.micro_kernel import Weights, micro_kernel
from convsmith.layout.indirection import FORMS, Axis, Window

C = 5
NAMES = ["f32_dwconv_up4x9", "qs8_dwconv_fp32_up4x9", "f32_dwconv_2f2m2l4c4s1r"]


def setting(name: str = NAMES[0]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A kernel, the arrays of a table and of packing, and the arguments of a call that works."""
    k = micro_kernel(name)
    item = k._memory
    x, zero = np.ones((4, 4, C), item), np.zeros(C, item)
    window = Window((Axis(4, 4, 3, p=1), Axis(4, 4, 3, p=1)), (4 * C, C))
    given = {"window": window, "source": x, "zero": zero}
    packing = {"kernel": np.ones((C, 3, 3), item), "bias": np.zeros(C, np.int32 if k.kernel.quantised else item)}
    if k.kernel.quantised:
        packing["scale"] = np.ones(C, np.float32)
    call = {
        "channels": C, "output_width": 4, "input": k.pointers(**given), "weights": k.pack(**packing),
        "output": np.zeros(4 * C, item), "zero": zero, "params": (0, 0, 0, -9, 9) if k.kernel.quantised else (-99, 99),
        "output_y": 1, "source": x,
    }  # fmt: skip
    if k.kernel.multipass:
        call["buffer"] = np.zeros(C, np.float32)
    return k, {"pointers": given, "pack": packing}, call


WRONG = {"list": [1.0] * 99, "number": 1.5, "text": "4", "none": None, "nothing": (), "truth": True, "class": object()}
OPTIONAL = {"source", "input_stride", "buffer", "output_y"}


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_of_a_wrong_kind_is_refused_in_words(name: str) -> None:
    k, others, call = setting(name)
    k(**call)
    for function, arguments in ((k, {**call, "output_increment": 0, "input_offset": 0, "input_stride": 24}),
                                (k.pointers, {**others["pointers"], "form": "row", "kernel_tile": 9}),
                                (k.pack, {**others["pack"], "form": "row"})):  # fmt: skip
        function(**({**arguments, "input_stride": None} if function is k else arguments))
        for argument in arguments:
            for kind, wrong in WRONG.items():
                if kind == "none" and argument in (*OPTIONAL, "scale", "kernel_tile"):
                    continue
                with pytest.raises((cs.UsageError, cs.ConfigError)) as error:
                    function(**{**arguments, argument: wrong})
                assert argument.split("_")[-1] in str(error.value), f"{argument}={wrong!r}: {error.value}"


@pytest.mark.parametrize("name", NAMES)
def test_arrays_of_another_type_are_refused(name: str) -> None:
    k, others, call = setting(name)
    for function, arguments in ((k, call), (k.pointers, others["pointers"]), (k.pack, others["pack"])):
        for argument, array in arguments.items():
            if isinstance(array, np.ndarray):
                for wrong in (array.astype(np.float64), array.astype(object), array.astype(array.dtype.newbyteorder())):
                    if wrong.dtype != array.dtype:
                        with pytest.raises(cs.UsageError, match=argument):
                            function(**{**arguments, argument: wrong})


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("increment", [-4 * C, -4, -(4 * C + 4), -(1 << 40), 1 << 62])
def test_outputs_neither_overlap_nor_leave_the_array(width: int, increment: int) -> None:
    k, _, call = setting()
    memory = np.zeros(12 * C, np.float32)
    call |= {"output": memory[4 * C : 8 * C], "output_width": width, "output_increment": increment}
    with pytest.raises(cs.UsageError, match="output_increment"):
        k(**call)
    assert not memory.any()


def test_read_only_arrays_are_not_written() -> None:
    k, _, call = setting(NAMES[2])
    for name in ("output", "buffer"):
        frozen = call[name].copy()
        frozen.flags.writeable = False
        with pytest.raises(cs.UsageError, match=f"{name} is read-only"):
            k(**{**call, name: frozen})


def test_results_do_not_overlap_what_is_read() -> None:
    k, others, call = setting(NAMES[2])
    x, zero = others["pointers"]["source"], call["zero"]
    for name, array in (("source", x.reshape(-1)[: 4 * C]), ("zero", zero), ("weights", call["weights"].buffer)):
        same = array if array.dtype == np.float32 else array[: 4 * 4 * C].view(np.float32)
        target = "output" if same.size >= 4 * C else "buffer"
        with pytest.raises(cs.UsageError, match=f"{target} shares memory with {name}"):
            k(**{**call, target: same})


def windows() -> list[tuple[Window, tuple[int, ...], bool]]:
    """Windows with the shape of a source, and whether each pixel lies in it."""
    inside = Axis(4, 4, 3, p=1)
    return [
        (Window((inside, inside), (4 * C, C)), (4, 4, C), True),
        (Window((inside, inside), (4 * C, C)), (2, 2, C), False),
        (Window((Axis(5, 1, 5), Axis(5, 1, 5)), (2 * C, C)), (2, 2, C), False),
        (Window((inside, inside), (4 * C, C)), (3, 4, C), False),
        (Window((inside, inside), (4 * C, C + 7)), (4, 4, C), False),
        (Window((inside, inside), (-4 * C, C)), (4, 4, C), False),
        (Window((inside,), (C,)), (4, C), True),
        (Window((inside,), (C,)), (3, C), False),
        (Window((Axis(0, 2, 1, p=1), inside), (4 * C, C)), (0, 4, C), True),
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("window, shape, fits", windows())
def test_a_window_beyond_its_source_is_refused(window: Window, shape: tuple[int, ...], fits: bool, form: str) -> None:
    k = micro_kernel("f32_dwconv_up4x25")
    x, zero = np.zeros(shape, np.float32), np.zeros(C, np.float32)
    if fits:
        k.pointers(window, x, zero, form)
        return
    with pytest.raises(cs.UsageError, match=r"a window over .* source has the shape"):
        k.pointers(window, x, zero, form)


def test_a_window_over_a_part_of_an_array_reads_with_its_strides() -> None:
    k, whole = micro_kernel("f32_dwconv_up4x9"), np.zeros((6, 6, 2 * C), np.float32)
    part, zero = whole[1:5, 1:5, :C], np.zeros(C, np.float32)
    window = Window((Axis(4, 4, 3, p=1), Axis(4, 4, 3, p=1)), (12 * C, 2 * C))
    k.pointers(window, part, zero)
    with pytest.raises(cs.UsageError, match="ends after element"):
        k.pointers(Window(window.axes, (12 * C + 2, 2 * C)), part, zero)


@pytest.mark.parametrize(
    "change",
    [
        {"input_offset": 4 * 4 * C * 4}, {"input_offset": -4}, {"channels": C + 1},
        {"source": np.ones((4, 4, C), np.float32)},
    ],
)  # fmt: skip
def test_pixels_outside_the_source_are_not_read(change: dict[str, Any]) -> None:
    # Row 1 of a 3x3 window with pads of 1 reads the source from its first element on.
    k, others, call = setting()
    if "channels" in change:
        n = C + 1
        kernel, bias = np.ones((n, 3, 3), np.float32), np.zeros(n, np.float32)
        zero, output, x = np.zeros(n, np.float32), np.zeros(4 * n, np.float32), np.ones(4 * 4 * C, np.float32)
        rows = k.pointers(**{**others["pointers"], "source": x, "zero": zero})
        call |= {"zero": zero, "weights": k.pack(kernel, bias), "output": output, "source": x, "input": rows}
        call["output_y"] = 3
    with pytest.raises(cs.UsageError, match="the pixels read"):
        k(**{**call, **change})


def test_addresses_of_the_caller_are_checked_against_a_source() -> None:
    k, _, call = setting()
    x = call["source"]
    addresses = np.full(36, x.ctypes.data, np.uint64)
    call |= {"input": addresses, "input_stride": 72, "output_y": None}
    k(**call)
    addresses[35] += x.nbytes - 4 * C
    k(**call)
    addresses[35] += 4
    with pytest.raises(cs.UsageError, match="the pixels read"):
        k(**call)


def test_weights_that_are_too_short_are_refused() -> None:
    k, _, call = setting()
    w = call["weights"]
    with pytest.raises(cs.UsageError, match=r"weights has .* elements of uint8; expected at least"):
        k(**{**call, "weights": Weights(w.name, w.channels, w.kernel_size, w.buffer[:-1], w.kernel, w.order)})


@pytest.mark.parametrize("params", [(1, 0), (float("nan"), 1), (0, 1, 2), (0, "x"), 3])
def test_params_are_numbers_in_order(params: object) -> None:
    k, _, call = setting()
    with pytest.raises(cs.UsageError, match="params"):
        k(**{**call, "params": params})


@pytest.mark.parametrize("params", [(0, 0, 0, -129, 9), (0, 0, 0, 0, 128), (1.5, 0, 0, 0, 1)])
def test_params_of_bytes_are_bytes(params: object) -> None:
    k, _, call = setting(NAMES[1])
    with pytest.raises(cs.UsageError, match="params"):
        k(**{**call, "params": params})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packed", FORMS)
def test_weights_and_table_have_one_order_of_taps(form: str, packed: str) -> None:
    """Weights packed for the form of the table give the truth; a table of the other order is refused."""
    rng, k = np.random.default_rng(0), micro_kernel("f32_dwconv_up4x6")
    x, w = rng.integers(-4, 5, (4, 5, C)).astype(np.float32), rng.integers(-4, 5, (C, 2, 3)).astype(np.float32)
    zero, out = np.zeros(C, np.float32), np.zeros((3, C), np.float32)
    rows = k.pointers(Window((Axis(4, 3, 2), Axis(5, 3, 3)), (5 * C, C)), x, zero, form)
    call = {"channels": C, "output_width": 3, "input": rows, "output": out.reshape(-1), "zero": zero,
            "params": (-999, 999)}  # fmt: skip
    weights = k.pack(w, zero, form=packed)
    if (form == "row") != (packed == "row"):
        with pytest.raises(cs.UsageError, match=f"pack weights of the shape \\(channels, 2, 3\\) with form='{form}'"):
            k(weights=weights, **call)
    else:
        k(weights=weights, **call)
        truth = sum(x[i, j : j + 3] * w[:, i, j] for i in range(2) for j in range(3))
        np.testing.assert_array_equal(out, truth)
    with pytest.raises(cs.UsageError, match="an unknown order"):
        k(weights=k.pack(w.reshape(C, 6), zero), **call)
    with pytest.raises(cs.UsageError, match="packed for a window of 3 x 2 taps, the table is for 2 x 3"):
        k(weights=k.pack(w.transpose(0, 2, 1), zero, form=form), **call)


def test_taps_in_a_line_have_one_order_only() -> None:
    k = micro_kernel("f32_dwconv_up4x3")
    x, zero, out = np.ones((1, 5, C), np.float32), np.zeros(C, np.float32), np.zeros(3 * C, np.float32)
    rows = k.pointers(Window((Axis(1, 1, 1), Axis(5, 3, 3)), (5 * C, C)), x, zero)
    k(channels=C, output_width=3, input=rows, weights=k.pack(np.ones((C, 3), np.float32), zero), output=out, zero=zero,
      params=(-9, 9))  # fmt: skip
    assert (out == 3).all()


@pytest.mark.parametrize(
    "axes",
    [[Axis(4, 4, 3, s=0)], [Axis(4, 4, 0)], [Axis(-1, 4, 3)], [Axis(4, -1, 3)], [Axis(4, 4, 3, d=-1)],
     [Axis(4.0, 4, 3)], [Axis(4, 4, "3")], [(4, 4, 3)], [], [Axis(4, 4, 3)] * 4, [Axis(4, 4, True)]],
)  # fmt: skip
def test_windows_of_no_meaning_are_refused(axes: list[Any]) -> None:
    with pytest.raises(cs.UsageError):
        Window(tuple(axes), (1,) * len(axes))
    with pytest.raises(cs.UsageError):
        Window((Axis(4, 4, 3),), (1.5,))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [3, None, ["f32_dwconv_up4x9"], b"f32_dwconv_up4x9", "", "f32_dwconv_up4x9 "])
def test_names_of_no_meaning_are_refused(name: Any) -> None:
    with pytest.raises((cs.UsageError, cs.ConfigError), match="name"):
        cs.micro_kernel(name)
    with pytest.raises(cs.UsageError, match="target is 3"):
        cs.micro_kernel("f32_dwconv_up4x9", 3)  # type: ignore[arg-type]
