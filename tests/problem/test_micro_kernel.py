"""Names of micro-kernels: what they say, and which numbers are legal."""

from __future__ import annotations

import pytest

from convsmith.diag.errors import ConfigError
from convsmith.problem.micro_kernel import TYPES, MicroKernel, is_micro_kernel

NAMES = {
    "f32_dwconv_up16x9": MicroKernel("f32", 16, (9,)),
    "bf16_dwconv_up1x1": MicroKernel("bf16", 1, (1,)),
    "qs8_dwconv_fp32_up32x25": MicroKernel("qs8", 32, (25,), requantise="fp32"),
    "f16_dwconv_5f6m7l16c8s4r": MicroKernel("f16", 16, (5, 6, 7), 8, 4),
    "f32_dwconv_1f1m1l4c4s4r": MicroKernel("f32", 4, (1, 1, 1), 4, 4),
    "qu8_dwconv_rndnu_6f6m7l8c8s1r": MicroKernel("qu8", 8, (6, 6, 7), 8, 1, "rndnu"),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_parsed_and_printed(name: str) -> None:
    made = MicroKernel.parse(name)
    assert made == NAMES[name] and made.name == str(made) == name
    assert made.quantised == name.startswith("q") and made.multipass == ("l" in name.rpartition("_")[2])


XNNPACK = {
    "xnn_f32_dwconv_ukernel_up2x3__scalar": "f32_dwconv_up2x3",
    "xnn_f32_dwconv_minmax_ukernel_9p16c__avx512f": "f32_dwconv_up16x9",
    "XNNPACK/src/f32-dwconv/gen/f32-dwconv-9p16c-minmax-avx512f.c": "f32_dwconv_up16x9",
    "xnn_f32_dwconv_minmax_ukernel_5f5m5l16c8s4r__avx_acc2": "f32_dwconv_5f5m5l16c8s4r",
    "xnn_qs8_dwconv_minmax_fp32_ukernel_25p8c__neonv8_mul16": "qs8_dwconv_fp32_up8x25",
    "f32-dwconv-up2x3-scalar.c": "f32_dwconv_up2x3",
    "f32-dwconv-9p16c-minmax-avx512f.c": "f32_dwconv_up16x9",
    "qu8-dwconv-9p8c-minmax-rndnu-neon-mul16.c": "qu8_dwconv_rndnu_up8x9",
    "f16-dwconv-6f6m7l8c8s4r-minmax-f16c": "f16_dwconv_6f6m7l8c8s4r",
}
"""Names of XNNPACK's functions and files, with this package's."""


@pytest.mark.parametrize("name", XNNPACK)
def test_names_of_functions_and_files_are_taken(name: str) -> None:
    assert is_micro_kernel(name) and MicroKernel.parse(name).name == XNNPACK[name]


@pytest.mark.parametrize("name", ["xnn_f32_dwconv_9p16c__avx", "f32-dwconv_9p16c", "mb1ic8ih6oc8kh3", "f32-dwconv-9p"])
def test_other_names_are_none_of_micro_kernels(name: str) -> None:
    assert not is_micro_kernel(name)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("f32_dwconv", "name"), ("f32_dwconv_up16", "name"), ("xf32_dwconv_up16x9x", "name"),
        ("f64_dwconv_up16x9", "type"),
        ("f32_dwconv_fp32_up16x9", "requantisation"), ("qs8_dwconv_up16x9", "requantisation"),
        ("qs8_dwconv_gemm_up16x9", "requantisation"),
        ("f32_dwconv_up0x9", "channel-tile"), ("f32_dwconv_up16x0", "kernel-tile"),
        ("f32_dwconv_5f0m5l16c8s4r", "kernel-tile"), ("f32_dwconv_5f5m5l16c6s2r", "subtile"),
        ("f32_dwconv_5f5m5l16c8s3r", "subtile"), ("f32_dwconv_5f5m5l16c0s4r", "subtile"),
        ("f32_dwconv_5f5m5l16c8s0r", "subtile"),
    ],
)  # fmt: skip
def test_names_that_are_not_legal(name: str, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MicroKernel.parse(name)
    assert caught.value.code == code


def test_every_type_has_micro_kernels() -> None:
    for type_ in TYPES:
        assert MicroKernel.parse(f"{type_}_dwconv_{'fp32_' * type_.startswith('q')}up8x3").type == type_


def test_passes_and_pointers() -> None:
    """The middle passes cover what the first and the last leave; pointers beyond the kernel are to zeros."""
    one, several = MicroKernel("f32", 8, (9,)), MicroKernel("f32", 8, (3, 4, 5), 8, 4)
    for taps in range(1, 30):
        middle = several.passes(taps)
        covered = 3 + 4 * middle + 5
        assert covered >= taps and (middle == 0 or covered - 4 < taps) and several.pointers(taps) == covered
        if taps <= 9:
            assert (one.passes(taps), one.pointers(taps)) == (0, 9)
        else:
            with pytest.raises(ConfigError, match=f"the kernel has {taps} taps, its tile 9; legal are up to 9"):
                one.pointers(taps)
    for kernel in (one, several):
        with pytest.raises(ConfigError, match="a kernel of 0 taps"):
            kernel.pointers(0)
