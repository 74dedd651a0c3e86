"""Problems of every kind with configs whose warps compute fragments, for sm_80 and sm_70."""

from __future__ import annotations

_CHANNELS_LAST = "--stag=axb --dtag=axb"


def _words(row: str, words: str, lane: str = "oc", shared: str = "src,wei") -> str:
    return f"--lane={lane} --instruction=mma_{row} --realise=pad_copy --shared={shared} {words}"


def _bf16(words: str, lane: str = "oc", shared: str = "src,wei") -> str:
    return _words("m16n8k16_bf16", words, lane, shared)


def _half(words: str, lane: str = "oc", shared: str = "src,wei") -> str:
    return _words("m8n8k4_f16", words, lane, shared)


AMPERE = {
    "one-warp": (f"{_CHANNELS_LAST} --dt=bf16:bf16:f32 mb1ic32iw32oc8ow32kw1",
                 _bf16("--register=oc:8,ow:32 --group=oc:8,ow:32,ic:16")),
    "tails": (f"{_CHANNELS_LAST} --dt=bf16:bf16:f32 mb1ic20iw37oc20ow37kw3pw1",
              _bf16("--register=oc:16,ow:16 --group=oc:32,ow:32,ic:16")),
    "sub-tiles": (f"{_CHANNELS_LAST} --dt=bf16 mb1ic20iw19oc40ow19kw3pw1",
                  _bf16("--register=oc:32,ow:16 --group=oc:64,ow:32,ic:32 --pad=src:8,wei:8 --sub_tile=16")),
    "planes": (f"{_CHANNELS_LAST} --dt=bf16 mb2ic16ih7oc24oh7kh3ph1",
               _bf16("--register=oc:24,ow:8,oh:4 --group=oc:24,ow:8,oh:8,ic:16")),
    "stride": (f"{_CHANNELS_LAST} --dt=bf16 mb1ic16ih13oc8oh7kh3ph1sh2",
               _bf16("--register=oc:8,ow:4,oh:4 --group=oc:8,ow:8,oh:8,ic:16,kw:3")),
    "dilation": (f"{_CHANNELS_LAST} --dt=bf16 mb1ic16ih10oc8oh6kh3ph0dh1",
                 _bf16("--register=oc:8,ow:4,oh:4 --group=oc:8,ow:8,oh:8,ic:16")),
    "bias-and-relu": (f"{_CHANNELS_LAST} --dt=f16 --dir=FWD_B --attr-post-ops=relu mb1ic16iw33oc12ow33kw1",
                      _words("m16n8k16_f16", "--register=oc:8,ow:16 --group=oc:16,ow:32,ic:16")),
    "packed": (f"{_CHANNELS_LAST} --dt=bf16 mb1ic16iw33oc12ow33kw3pw1",
               _bf16("--register=oc:8,ow:16 --group=oc:16,ow:32,ic:16 --pack=wei --pad=wei:8 --buffers=2 "
                     "--copies=async")),
    "bias-and-summand-first": (
        f"{_CHANNELS_LAST} --dt=bf16 --dir=FWD_B --attr-post-ops=sum+relu mb1ic16iw33oc12ow33kw1",
        _bf16("--register=oc:8,ow:16 --group=oc:16,ow:32,ic:16 --preload=bia,dst")),
    "taps-and-channels": (f"{_CHANNELS_LAST} --dt=bf16 mb1ic3ih16oc16oh8kh7sh2ph3",
                          _bf16("--register=oc:16,ow:8,oh:2 --group=oc:16,ow:8,oh:4,ic:4,kw:8,kh:1")),
    "bytes": (f"{_CHANNELS_LAST} --dt=s8:s8:s32 mb1ic32iw33oc12ow33kw3pw1",
              _words("m16n8k32_s8", "--register=oc:8,ow:16 --group=oc:16,ow:32,ic:32")),
    "bytes-and-relu": (f"{_CHANNELS_LAST} --dt=u8:s8:u8 --attr-post-ops=relu mb1ic40iw17oc12ow17kw3pw1",
                       _words("m16n8k32_u8_s8", "--register=oc:8,ow:16 --group=oc:16,ow:32,ic:32")),
    "bytes-and-relu-with-carried-offsets": (
        f"{_CHANNELS_LAST} --dt=u8:s8:u8 --attr-post-ops=relu mb1ic40iw17oc12ow17kw3pw1",
        _words("m16n8k32_u8_s8", "--register=oc:8,ow:16 --group=oc:16,ow:32,ic:32 --carry=yes")),
    "zero-points": (
        f"{_CHANNELS_LAST} --dt=u8:s8:u8 --attr-zero-points=src:common:3+wei:common:2 mb1ic40iw17oc12ow17kw3pw1",
        _words("m16n8k32_u8_s8", "--register=oc:8,ow:16 --group=oc:16,ow:32,ic:32 --offsets=sums"),
    ),
    "channels-in-blocks-of-four": (
        "--stag=aBx4b --dtag=aBx4b --dt=s8:s8:s32 mb1ic32iw33oc12ow33kw3pw1",
        _words("m16n8k32_s8", "--register=oc:8,ow:16 --group=oc:16,ow:32,ic:32"),
    ),
    "channels-in-blocks-of-32": (
        "--stag=aBx32b --wtag=ABx32b32a --dtag=aBx32b --dt=s8:s8:s32 mb1ic40iw17oc40ow17kw3pw1",
        _words("m16n8k32_s8", "--register=oc:8,ow:16 --group=oc:32,ow:32,ic:32"),
    ),
    "tf32": (
        f"{_CHANNELS_LAST} --wtag=axb --accuracy=any mb1ic20iw33oc12ow33kw3pw1",
        _words("m16n8k8_tf32", "--register=oc:8,ow:16 --group=oc:16,ow:32,ic:16 --pad=src:4,wei:4"),
    ),
    "tf32-of-data": (
        f"--dir=BWD_D {_CHANNELS_LAST} --accuracy=any mb1ic8ih8oc16oh4kh3ph1sh2",
        _words("m16n8k4_tf32", "--register=ic:8,iw:4,ih:4 --group=ic:8,iw:4,ih:4,oc:16", "ic", "diff_dst,wei"),
    ),
    "groups": (f"{_CHANNELS_LAST} --dt=bf16 g2mb1ic32iw17oc24ow17kw3pw1",
               _bf16("--register=oc:8,ow:16 --group=oc:16,ow:32,ic:16")),
    "backward": (f"--dir=BWD_D {_CHANNELS_LAST} --dt=bf16 mb1ic16ih7oc16oh7kh3ph1",
                 _bf16("--register=ic:8,iw:8,ih:2 --group=ic:16,iw:8,ih:4,oc:16", "ic", "diff_dst,wei")),
    "backward-and-stride": (
        f"--dir=BWD_D {_CHANNELS_LAST} --dt=bf16 mb1ic8ih8oc16oh4kh3ph1sh2",
        _bf16("--register=ic:8,iw:4,ih:4 --group=ic:8,iw:4,ih:4,oc:16", "ic", "diff_dst,wei"),
    ),
    "weights": (f"--dir=BWD_W {_CHANNELS_LAST} --dt=bf16:f32:bf16 mb2ic16ih6oc16oh6kh3ph1",
                _bf16("--register=oc:8,ic:16 --group=oc:16,ic:16,ow:8,oh:2", "oc", "src,diff_dst")),
    "channels-first": ("--dt=bf16 mb1ic16ih6oc20oh6kh3ph1",
                       _bf16("--register=oc:16,ow:8 --group=oc:32,ow:8,oh:2,ic:16", "ow")),
    "matmul": ("--matmul --dt=bf16 40x48:48x24", _bf16("--register=m:16,n:8 --group=m:32,n:16,k:16", "n")),
    "three-buffers": (
        f"{_CHANNELS_LAST} --wtag=axb --dt=bf16 mb1ic64iw18oc32ow18kw3pw1",
        _bf16("--register=oc:16,ow:16 --group=oc:32,ow:32,ic:32 --buffers=3 --copies=async --swizzle=src:8,wei:8"),
    ),
    "factors-loaded-ahead": (
        f"{_CHANNELS_LAST} --wtag=axb --dt=bf16 mb1ic128iw18oc32ow18kw3pw1",
        _bf16("--register=oc:16,ow:16 --group=oc:32,ow:32,ic:32 --buffers=3 --copies=async --load_ahead=yes "
              "--pad=src:8,wei:8"),
    ),
    "factors-loaded-ahead-in-rounds": (
        f"{_CHANNELS_LAST} --wtag=axb --dt=s8:s8:s32 mb1ic256iw18oc32ow18kw3pw1",
        _words("m16n8k32_s8", "--register=oc:16,ow:16 --group=oc:32,ow:32,ic:64 --buffers=3 --copies=async "
               "--load_ahead=yes --rounds=yes --pad=src:16,wei:16"),
    ),
    "two-buffers": (
        f"{_CHANNELS_LAST} --wtag=axb --dt=f16 mb1ic32iw18oc32ow18kw3pw1",
        _words("m16n8k16_f16", "--register=oc:16,ow:16 --group=oc:32,ow:32,ic:16 --buffers=2 --copies=async "
               "--pad=src:8,wei:8"),
    ),
    "one-warp-copies": (
        f"{_CHANNELS_LAST} --wtag=axb --dt=bf16 mb1ic48iw16oc16ow16kw1",
        _bf16("--register=oc:16,ow:16 --group=oc:16,ow:16,ic:16 --buffers=3 --copies=async --pad=src:8,wei:8"),
    ),
    "one-warp-copies-loaded-ahead": (
        f"{_CHANNELS_LAST} --wtag=axb --dt=bf16 mb1ic160iw16oc16ow16kw1",
        _bf16("--register=oc:16,ow:16 --group=oc:16,ow:16,ic:32 --buffers=3 --copies=async --load_ahead=yes "
              "--pad=src:8,wei:8"),
    ),
    "weights-of-points": (f"--dir=BWD_W {_CHANNELS_LAST} --dt=bf16:f32:bf16 mb2ic32ih6oc24oh6kh1",
                          _bf16("--register=oc:16,ic:16 --group=oc:32,ic:32,ow:8,oh:4", "oc", "src,diff_dst")),
    "parts": (f"{_CHANNELS_LAST} --dt=bf16 mb1ic64iw20oc20ow20kw3pw1",
              _bf16("--register=oc:16,ow:16 --group=oc:32,ow:32,ic:16 --split=ic:2")),
    "parts-packed": (f"{_CHANNELS_LAST} --dt=bf16 --dir=FWD_B --attr-post-ops=relu mb1ic32iw33oc12ow33kw3pw1",
                     _bf16("--register=oc:8,ow:16 --group=oc:16,ow:32,ic:16 --pack=wei --pad=wei:8 --buffers=2 "
                           "--copies=async --split=ic:2")),
    "added": (f"{_CHANNELS_LAST} --wtag=axb --dt=bf16:bf16:f32 mb1ic64iw18oc32ow18kw3pw1",
              _bf16("--register=oc:16,ow:16 --group=oc:32,ow:32,ic:32 --buffers=2 --copies=async --swizzle=src:8,wei:8 "
                    "--split=kw:3 --join=atomic")),
    "bytes-added": (f"{_CHANNELS_LAST} --dt=s8:s8:s32 mb1ic64iw33oc12ow33kw3pw1",
                    _words("m16n8k32_s8", "--register=oc:8,ow:16 --group=oc:16,ow:32,ic:32 --split=ic:2 "
                           "--join=atomic")),
    "backward-and-stride-added": (
        f"--dir=BWD_D {_CHANNELS_LAST} --dt=f32:bf16:bf16 mb1ic8ih8oc32oh4kh3ph1sh2",
        _bf16("--register=ic:8,iw:4,ih:4 --group=ic:8,iw:4,ih:4,oc:16 --split=oc:2 --join=atomic", "ic",
              "diff_dst,wei"),
    ),
    "weights-in-parts": (
        f"--dir=BWD_W {_CHANNELS_LAST} --dt=bf16 mb3ic16ih6oc16oh6kh3ph1",
        _bf16("--fuse=mb+oh,mb_oh+ow --register=oc:8,ic:16 --group=oc:16,ic:16,mb_oh_ow:16 --split=mb_oh_ow:3", "oc",
              "src,diff_dst"),
    ),
    "weights-added": (f"--dir=BWD_W {_CHANNELS_LAST} --dt=bf16:f32:bf16 mb2ic16ih6oc16oh6kh3ph1",
                      _bf16("--register=oc:8,ic:16 --group=oc:16,ic:16,ow:8,oh:2 --split=mb:2 --join=atomic", "oc",
                            "src,diff_dst")),
    "parts-of-two-loops": (f"{_CHANNELS_LAST} --wtag=axb --dt=bf16 mb1ic64iw18oc20ow18kw3pw1",
                           _bf16("--register=oc:16,ow:16 --group=oc:32,ow:32,ic:32 --split=kw:3,ic:2 --load_ahead=yes "
                                 "--buffers=3 --copies=async --pad=src:8,wei:8")),
    "weights-added-along-two-loops": (
        f"--dir=BWD_W {_CHANNELS_LAST} --dt=bf16:f32:bf16 mb2ic16ih4iw6oc16oh4ow6kh3kw3ph1pw1",
        _bf16("--register=oc:8,ic:16 --group=oc:16,ic:16,ow:8,oh:2 --split=mb:2,oh:2 --join=atomic", "oc",
              "src,diff_dst"),
    ),
    "volume": (f"{_CHANNELS_LAST} --dt=bf16 mb1ic8id3ih4iw4oc8od3oh4ow4kd3kh1kw2pd1",
               _bf16("--register=oc:8,oh:4,ow:4 --group=oc:8,oh:4,ow:4,ic:8,kw:2")),
}  # fmt: skip
VOLTA = {
    "one-warp-70": (f"{_CHANNELS_LAST} --dt=f16:f16:f32 mb1ic8iw32oc8ow32kw1",
                    _half("--register=oc:8,ow:32 --group=oc:8,ow:32,ic:8")),
    "tails-70": (f"{_CHANNELS_LAST} --dt=f16 mb1ic10iw33oc12ow33kw3pw1",
                 _half("--register=oc:8,ow:32 --group=oc:16,ow:64,ic:8")),
    "planes-70": (f"{_CHANNELS_LAST} --dt=f16 mb2ic8ih7oc24oh7kh3ph1",
                  _half("--register=oc:24,ow:8,oh:4 --group=oc:24,ow:8,oh:8,ic:8")),
    "stride-70": (f"{_CHANNELS_LAST} --dt=f16 mb1ic8ih13oc8oh7kh3ph1sh2",
                  _half("--register=oc:8,ow:8,oh:4 --group=oc:8,ow:8,oh:8,ic:8,kw:3")),
    "dilation-70": (f"{_CHANNELS_LAST} --dt=f16 mb1ic8ih10oc8oh6kh3ph0dh1",
                    _half("--register=oc:8,ow:8,oh:4 --group=oc:8,ow:8,oh:8,ic:8")),
    "bias-and-relu-70": (f"{_CHANNELS_LAST} --dt=f16 --dir=FWD_B --attr-post-ops=relu mb1ic16iw33oc12ow33kw1",
                         _half("--register=oc:8,ow:32 --group=oc:16,ow:32,ic:16")),
    "blocks-of-four": ("--stag=aBx4b --wtag=ABx4b4a --dtag=aBx4b --dt=f16 mb1ic8ih6oc8oh6kh3ph1",
                       _half("--register=oc:8,ow:8,oh:4 --group=oc:8,ow:8,oh:8,ic:4")),
    "taps-and-channels-70": (f"{_CHANNELS_LAST} --dt=f16 mb1ic3ih16oc16oh8kh7sh2ph3",
                             _half("--register=oc:16,ow:8,oh:4 --group=oc:16,ow:8,oh:4,ic:4,kw:8,kh:1")),
    "groups-70": (f"{_CHANNELS_LAST} --dt=f16 g2mb1ic16iw17oc16ow17kw3pw1",
                  _half("--register=oc:8,ow:32 --group=oc:8,ow:32,ic:8")),
    "backward-70": (f"--dir=BWD_D {_CHANNELS_LAST} --dt=f16 mb1ic16ih7oc8oh7kh3ph1",
                    _half("--register=ic:8,iw:8,ih:4 --group=ic:16,iw:8,ih:8,oc:8", "ic", "diff_dst,wei")),
    "backward-and-stride-70": (
        f"--dir=BWD_D {_CHANNELS_LAST} --dt=f16 mb1ic8ih8oc8oh4kh3ph1sh2",
        _half("--register=ic:8,iw:8,ih:4 --group=ic:8,iw:8,ih:4,oc:8", "ic", "diff_dst,wei"),
    ),
    "weights-70": (f"--dir=BWD_W {_CHANNELS_LAST} --dt=f16:f32:f16 mb2ic32ih6oc8oh6kh2ph1",
                   _half("--register=oc:8,ic:32 --group=oc:8,ic:32,ow:8,oh:2", "oc", "src,diff_dst")),
    "channels-first-70": ("--dt=f16 mb1ic8ih6oc40oh6kh3ph1",
                          _half("--register=oc:32,ow:8 --group=oc:64,ow:8,oh:2,ic:8", "ow")),
    "matmul-70": ("--matmul --dt=f16 40x16:16x24", _half("--register=m:32,n:8 --group=m:64,n:16,k:8", "n")),
}  # fmt: skip
SMALL = {
    "masked": (
        f"{_CHANNELS_LAST} --dt=bf16:bf16:f32 mb1ic8iw9oc5ow9kw3pw1",
        "--lane=oc --instruction=mma_m16n8k8_bf16 --realise=mask --register=oc:8,ow:16 --group=oc:8,ow:16,ic:8",
        "sm_80",
    ),
    "tail": (f"{_CHANNELS_LAST} --dt=bf16:bf16:f32 mb1ic5iw9oc5ow9kw2pw1",
             _bf16("--register=oc:8,ow:16 --group=oc:8,ow:16,ic:8,kw:2"), "sm_80"),
    "bytes": (f"{_CHANNELS_LAST} --dt=s8:s8:s32 mb1ic9iw7oc5ow7kw1",
              _words("m16n8k16_s8", "--register=oc:8,ow:16 --group=oc:8,ow:16,ic:16"), "sm_80"),
    "added": (f"{_CHANNELS_LAST} --dt=bf16:bf16:f32 mb1ic16iw9oc5ow9kw2pw1",
              _bf16("--register=oc:8,ow:16 --group=oc:8,ow:16,ic:8,kw:2 --split=ic:2 --join=atomic"), "sm_80"),
    "weights-in-parts": (
        f"--dir=BWD_W {_CHANNELS_LAST} --dt=bf16 mb2ic5iw9oc5ow9kw1",
        _bf16("--fuse=mb+ow --register=oc:8,ic:16 --group=oc:8,ic:16,mb_ow:16 --split=mb_ow:2", "oc", "src,diff_dst"),
        "sm_80",
    ),
    "taps-and-channels-in-parts": (
        f"{_CHANNELS_LAST} --dt=bf16 mb1ic16iw9oc5ow9kw2pw1",
        _words("m16n8k8_bf16", "--register=oc:8,ow:16 --group=oc:8,ow:16,ic:8 --split=kw:2,ic:2"), "sm_80",
    ),
    "quads": (f"{_CHANNELS_LAST} --dt=f16:f16:f32 mb1ic3iw9oc5ow9kw3pw1",
              _half("--register=oc:8,ow:32 --group=oc:8,ow:32,ic:4"), "sm_70"),
}  # fmt: skip
"""Problems that the interpreter of the IR runs after each pass, each with the level."""
