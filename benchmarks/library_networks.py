"""Forty networks with random weights: those of torchvision, timm, transformers and diffusers, and of plain PyTorch.

    model, inputs = listed_network("timm levit_128s")

Nothing is downloaded. A network of a package that is not installed is absent from `available()`. Sizes are those of the
package where a run on one core takes less than a few seconds, and smaller ones of the same architecture elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from audio_networks import hifi_gan, hybrid_demucs, yolo
from torch import Tensor, nn
from torch_networks import NETWORKS, network

__all__ = ["LISTED", "available", "listed_network"]

Shape = tuple[int, ...]
Made = tuple[nn.Module, tuple[Any, ...]]


def available() -> Sequence[str]:
    """Return the names of the networks whose packages are installed."""
    return [name for name in LISTED if _package(name) == "torch" or find_spec(_package(name))]


def listed_network(name: str) -> Made:
    """Return a network with random weights, in eval mode, and the arguments of a call, from one seed."""
    torch.manual_seed(0)
    model, inputs = LISTED[name]()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.8, 1.2)
        if isinstance(module, nn.Linear) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.02)
    return model.eval().requires_grad_(False), inputs


def _package(name: str) -> str:
    return name.partition(" ")[0]


class _Part(nn.Module):
    """A network of transformers or diffusers as a function of tensors: `names` of its result, or all of it."""

    def __init__(self, model: nn.Module, *names: str, **options: Any) -> None:
        super().__init__()
        self.model, self._names, self._options = model, names, options

    def forward(self, *inputs: Tensor) -> Any:
        found = self.model(*inputs, **self._options)
        values = tuple(getattr(found, name) for name in self._names)
        return values[0] if len(values) == 1 else values


def _own(name: str) -> Made:
    model, x = network(name)
    return model, (x,)


def _plain(make: Callable[[], nn.Module], shape: Shape) -> Made:
    return make(), (torch.randn(1, *shape),)


def _torchvision(name: str, shape: Shape, group: str = "", **options: Any) -> Made:
    import torchvision.models as models

    home = getattr(models, group) if group else models
    model = getattr(home, name)(weights=None, **options)
    x = torch.randn(1, *shape)
    return (_Out(model) if group == "segmentation" else model), (x,)


class _Out(nn.Module):
    """The output `out` of a network that returns several by name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)["out"]


def _timm(name: str, size: int = 224, **options: Any) -> Made:
    import timm

    return timm.create_model(name, pretrained=False, **options), (torch.randn(1, 3, size, size),)


def _transformers(
    name: str, config: str, inputs: Callable[[], tuple[Any, ...]], results: Sequence[str], **options: Any
) -> Made:
    import transformers

    made = getattr(transformers, config)(**options)
    made._attn_implementation = "sdpa"
    return _Part(getattr(transformers, name)(made), *results), inputs()


def _diffusers(name: str, inputs: Callable[[], tuple[Any, ...]], **options: Any) -> Made:
    import diffusers

    return _Part(getattr(diffusers, name)(**options), "sample"), inputs()


def _random(*shapes: Shape) -> Callable[[], tuple[Any, ...]]:
    return lambda: tuple(torch.randn(shape) for shape in shapes)


def _denoised(*shapes: Shape) -> Callable[[], tuple[Any, ...]]:
    """Return the arguments of a denoiser: an image, a step, and further arrays."""
    return lambda: (torch.randn(shapes[0]), torch.tensor([500]), *(torch.randn(shape) for shape in shapes[1:]))


_BLOCKS = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
"""Widths of networks of diffusers."""

_VISION, _SPEECH = (1, 3, 224, 224), (1, 16000)

LISTED: Mapping[str, Callable[[], Made]] = {
    **{f"torch {name}": partial(_own, name) for name in NETWORKS if name != "resnet18"},
    "torch hifi_gan": partial(_plain, hifi_gan, (80, 32)),
    "torch demucs": partial(_plain, hybrid_demucs, (2, 16384)),
    "torch yolo": partial(_plain, yolo, (3, 256, 256)),
    "torchvision densenet121": partial(_torchvision, "densenet121", (3, 224, 224)),
    "torchvision inception_v3": partial(
        _torchvision, "inception_v3", (3, 299, 299), init_weights=False, aux_logits=False
    ),
    "torchvision shufflenet_v2_x1_0": partial(_torchvision, "shufflenet_v2_x1_0", (3, 224, 224)),
    "torchvision regnet_y_400mf": partial(_torchvision, "regnet_y_400mf", (3, 224, 224)),
    "torchvision efficientnet_v2_s": partial(_torchvision, "efficientnet_v2_s", (3, 224, 224)),
    "torchvision swin_t": partial(_torchvision, "swin_t", (3, 224, 224)),
    "torchvision vit_b_16": partial(_torchvision, "vit_b_16", (3, 224, 224)),
    "torchvision deeplabv3": partial(
        _torchvision, "deeplabv3_mobilenet_v3_large", (3, 224, 224), "segmentation", weights_backbone=None
    ),
    "torchvision r2plus1d_18": partial(_torchvision, "r2plus1d_18", (3, 8, 112, 112), "video"),
    "timm mobilenetv4_conv_small": partial(_timm, "mobilenetv4_conv_small"),
    "timm convnextv2_atto": partial(_timm, "convnextv2_atto"),
    "timm ghostnetv2_100": partial(_timm, "ghostnetv2_100"),
    "timm res2net50d": partial(_timm, "res2net50d"),
    "timm resnest14d": partial(_timm, "resnest14d"),
    "timm mobilevit_s": partial(_timm, "mobilevit_s", 256),
    "timm coatnet_nano": partial(_timm, "coatnet_nano_rw_224"),
    "timm levit_128s": partial(_timm, "levit_128s"),
    "timm poolformer_s12": partial(_timm, "poolformer_s12"),
    "timm efficientformerv2_s0": partial(_timm, "efficientformerv2_s0"),
    "timm dm_nfnet_f0": partial(_timm, "dm_nfnet_f0", 192),
    "transformers clip_vision": partial(
        _transformers, "CLIPVisionModel", "CLIPVisionConfig", _random(_VISION), ("last_hidden_state", "pooler_output"),
        num_hidden_layers=4,
    ),
    "transformers whisper_encoder": lambda: _whisper(),
    "transformers segformer_b0": partial(
        _transformers, "SegformerForSemanticSegmentation", "SegformerConfig", _random(_VISION), ("logits",)
    ),
    "transformers dinov2": partial(
        _transformers, "Dinov2Model", "Dinov2Config", _random(_VISION), ("last_hidden_state",),
        hidden_size=384, num_attention_heads=6, num_hidden_layers=4, image_size=224,
    ),
    "transformers wav2vec2": partial(
        _transformers, "Wav2Vec2Model", "Wav2Vec2Config", _random(_SPEECH), ("last_hidden_state",),
        num_hidden_layers=2, mask_time_prob=0.0,
    ),
    "transformers detr": lambda: _detr(),
    "diffusers unet2d": partial(
        _diffusers, "UNet2DModel", _denoised((1, 3, 64, 64)), sample_size=64, **_BLOCKS,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ),
    "diffusers unet2d_condition": partial(
        _diffusers, "UNet2DConditionModel", _denoised((1, 4, 32, 32), (1, 77, 64)), sample_size=32, **_BLOCKS,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=64,
    ),
    "diffusers autoencoder_kl": partial(
        _diffusers, "AutoencoderKL", _random((1, 3, 64, 64)), **_BLOCKS,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    ),
    "diffusers vq_model": partial(
        _diffusers, "AutoencoderTiny", _random((1, 3, 64, 64)),
    ),
}  # fmt: skip
"""Networks by package and name."""


def _whisper() -> Made:
    import transformers

    config = transformers.WhisperConfig(encoder_layers=4, d_model=384, encoder_attention_heads=6, encoder_ffn_dim=1536)
    return _Part(transformers.WhisperModel(config).encoder, "last_hidden_state"), (torch.randn(1, 80, 3000),)


def _detr() -> Made:
    import transformers

    backbone = transformers.ResNetConfig(depths=(2, 2, 2, 2), layer_type="basic", hidden_sizes=(64, 128, 256, 512))
    config = transformers.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone,
        encoder_layers=2, decoder_layers=2, num_queries=20,
    )  # fmt: skip
    return _Part(transformers.DetrForObjectDetection(config), "logits", "pred_boxes"), (torch.randn(1, 3, 160, 160),)
