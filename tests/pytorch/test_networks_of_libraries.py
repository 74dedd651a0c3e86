"""Networks of transformers and diffusers, with random weights: their own classes, signatures and results."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from optimized import assert_alike  # noqa: E402

from convsmith.torch import optimize  # noqa: E402

SMALL: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 64}
BLOCKS: dict[str, Any] = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
COND: dict[str, Any] = {**BLOCKS, "sample_size": 16, "cross_attention_dim": 16, "attention_head_dim": 8}
WHISPER: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 100, "vocab_size": 100, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
IMAGE = {"pixel_values": (1, 3, 64, 64)}

TRANSFORMERS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "CLIPVision": ({**SMALL, "image_size": 64, "patch_size": 16}, IMAGE, 1),
    "Whisper": (WHISPER, {"input_features": (1, 80, 200), "decoder_input_ids": [[1, 2, 3]]}, 2),
    "ResNet": ({"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1]}, IMAGE, 9),
    "Bit": ({"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1], "num_groups": 8}, IMAGE, 9),
    "ConvNext": ({"hidden_sizes": [16, 32, 64, 96], "depths": [1, 1, 2, 1]}, IMAGE, 9),
    "Wav2Vec2": ({**SMALL, "conv_dim": (32,) * 7}, {"input_values": (1, 4000)}, 8),
    "SpeechT5HifiGan": ({"upsample_initial_channel": 64}, {"spectrogram": (20, 80)}, 78),
}
"""By the class of model: its configuration, the shapes or values of its arguments, and its convolutions."""
DIFFUSERS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "UNet2DModel": (
        {**BLOCKS, "sample_size": 32, "attention_head_dim": 8, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
         "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
        {"sample": (1, 3, 32, 32), "timestep": 10}, 25,
    ),
    "UNet2DConditionModel": (
        {**COND, "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
         "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")},
        {"sample": (1, 4, 16, 16), "timestep": 3, "encoder_hidden_states": (1, 5, 16)}, 0,
    ),
    "AutoencoderKL": (
        {"block_out_channels": (32, 64), "norm_num_groups": 8, "down_block_types": ("DownEncoderBlock2D",) * 2,
         "up_block_types": ("UpDecoderBlock2D",) * 2},
        {"sample": (1, 3, 64, 64)}, 30,
    ),
}  # fmt: skip


def check(model: Any, arguments: dict[str, Any], convolutions: int) -> None:
    torch.manual_seed(1)
    given = {
        name: torch.randn(x) if isinstance(x, tuple) else torch.tensor(x) if isinstance(x, list) else x
        for name, x in arguments.items()
    }
    made = optimize(model, given, threads=1, keep_faster=False)
    assert type(made) is type(model) and made.config is not None
    report = made.convsmith_report
    assert report.ours == report.convolutions >= convolutions
    with torch.no_grad():
        assert_alike(made(**given), model(**given))


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_networks_of_transformers(name: str) -> None:
    """All but the last: 6 s on a core of its own."""
    library = pytest.importorskip("transformers", exc_type=ImportError)
    config, arguments, convolutions = TRANSFORMERS[name]
    torch.manual_seed(0)
    made = getattr(library, f"{name}Config")(**config)
    model = getattr(library, f"{name}Model", None) or getattr(library, name)
    check(model(made).eval(), arguments, convolutions)


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFUSERS)
def test_networks_of_diffusers(name: str) -> None:
    """All: 9 s on a core of its own."""
    pytest.importorskip("diffusers", exc_type=ImportError)
    options, arguments, convolutions = DIFFUSERS[name]
    torch.manual_seed(0)
    check(getattr(importlib.import_module("diffusers"), name)(**options).eval(), arguments, convolutions)
