"""Small problems whose operands the copy engine of sm_90a brings, with configs of few columns, and their artifacts."""

from __future__ import annotations

from functools import cache

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.driver import emit, lower
from convsmith.diag.collection import no_collection
from convsmith.ir.intern import one_table
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for

LEVEL = "sm_90a"
LAST = "--stag=axb --wtag=axb --dtag=axb"
_FORWARD = (
    "--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=kh,kw,ic --register=mb_oh_ow:64,oc:{n} --group=mb_oh_ow:{m},oc:{n},ic:{k}"
    " --shared=src,wei --buffers={slots} --instruction={row}"
)


def forward(m: int = 64, n: int = 16, k: int = 64, slots: int = 3, row: str = "wgmma_m64n16k16_bf16") -> str:
    """Return the words of a config of a forward pass: tiles of so many pixels, channels and terms."""
    return _FORWARD.format(m=m, n=n, k=k, slots=slots, row=row)


def stored(words: str) -> str:
    """Return the words of a config whose result leaves through shared memory."""
    return words.replace("--shared=src,wei", "--shared=src,wei,dst")


_SHAPES = {
    "1x1": "mb2ic64ih5oc16oh5kh1", "3x3": "mb1ic128ih6oc16oh6kh3ph1", "stride": "mb2ic64ih9oc24oh5kh3ph1sh2",
    "tail of terms": "mb1ic72ih5oc16oh5kh3ph1", "dilation": "mb1ic64ih9oc16oh9kh3ph2dh1",
    "column of taps": "mb3ic64ih4iw4oc16oh4ow4kh3kw1ph1pw0", "strides": "mb1ic64ih7iw5oc16oh4ow3kh1kw3sh2sw2ph0pw1",
    "even taps": "mb1ic64ih8iw9oc16oh7ow8kh2kw2", "small images": "mb4ic64ih3oc16oh3kh3ph1",
    "no padding": "mb1ic64ih12iw4oc16oh10ow2kh3kw3", "many taps": "mb1ic64ih5iw9oc16oh5ow9kh5kw5ph2pw2",
    "many steps": "mb2ic192ih6oc16oh6kh1", "tiles": "mb3ic64ih8oc40oh8kh1", "an axis": "mb2ic64iw20oc16ow20kw3pw1",
    "a volume": "mb1ic64id3ih4iw3oc16od4oh4ow3kd2kh3kw1pd1ph1pw0",
}  # fmt: skip
KINDS = {name: (f"{LAST} --dt=bf16 {shape}", forward()) for name, shape in _SHAPES.items()} | {
    "an axis": (f"{LAST} --dt=bf16 {_SHAPES['an axis']}", forward().replace("mb+oh,mb_oh+ow", "mb+ow")
                .replace("mb_oh_ow", "mb_ow").replace("kh,kw,ic", "kw,ic")),
    "a volume": (f"{LAST} --dt=bf16 {_SHAPES['a volume']}",
                 forward().replace("mb+oh,mb_oh+ow", "mb+od,mb_od+oh,mb_od_oh+ow").replace("mb_oh_ow", "mb_od_oh_ow")
                 .replace("kh,kw,ic", "kd,kh,kw,ic")),
    "columns around rows": (f"{LAST} --dt=bf16 {_SHAPES['tiles']}", forward() + " --order=oc,mb_oh_ow"),
    "two groups of warps": (f"{LAST} --dt=bf16 --attr-post-ops=relu mb1ic64ih9oc16oh9kh1", forward(128, slots=2)),
    "three groups of warps": (f"{LAST} --dt=bf16 mb1ic64ih15oc16oh15kh1", forward(192, slots=2)),
    "four groups of warps": (f"{LAST} --dt=bf16 mb1ic64ih16iw15oc16oh16ow15kh1kw1", forward(256, slots=2)),
    "two products beside each other": (f"{LAST} --dt=bf16 mb1ic64ih7oc32oh7kh1", forward(n=32, slots=1)),
    "96 columns": (f"{LAST} --dt=bf16 mb1ic64ih5oc96oh5kh1", forward(n=96, row="wgmma_m64n96k16_bf16")),
    "160 columns": (f"{LAST} --dt=s8:s8:s8 mb1ic64ih5oc160oh5kh1", forward(n=160, row="wgmma_m64n160k32_s8")),
    "192 columns": (f"{LAST} --dt=f16 mb1ic64ih5oc184oh5kh1", forward(n=192, row="wgmma_m64n192k16_f16")),
    "tf32": (f"--dir=FWD_B {LAST} --accuracy=any --attr-post-ops=relu mb1ic40ih6oc24oh6kh3ph1",
             forward(k=32, row="wgmma_m64n16k8_tf32")),
    "f16": (f"{LAST} --dt=f16 mb1ic128ih5oc16oh5kh1", forward(row="wgmma_m64n16k16_f16")),
    "s8": (f"{LAST} --dt=s8:s8:s32 mb1ic256ih5oc16oh5kh1", forward(k=128, row="wgmma_m64n16k32_s8")),
    "8-bit floats": (f"{LAST} --dt=f8_e4m3:f8_e4m3:bf16 --accuracy=any mb1ic128ih5oc24oh5kh1",
                     forward(k=128, row="wgmma_m64n16k32_f8_e4m3")),
    "8-bit floats of two types": (
        f"--dir=FWD_B {LAST} --dt=f8_e5m2:f8_e4m3:f8_e4m3 --accuracy=any --attr-scales=src:common:0.5 "
        "mb1ic64ih6oc16oh6kh3ph1", forward(k=64, row="wgmma_m64n16k32_f8_e5m2_f8_e4m3"),
    ),
    "bias and relu": (f"--dir=FWD_B {LAST} --dt=bf16 --attr-post-ops=relu mb1ic64ih6oc24oh6kh1", forward()),
    "post-ops": (f"{LAST} --dt=f16 --attr-post-ops=sum:2+binary_add:f32:per_oc+clip:-8:40 mb1ic64ih5oc24oh5kh1",
                 forward(row="wgmma_m64n16k16_f16")),
    "scales": (f"--dir=FWD_B {LAST} --dt=s8:s8:s8 --attr-scales=src:common:0.5+wei:per_oc mb1ic128ih5oc24oh5kh1",
               forward(k=128, row="wgmma_m64n16k32_s8")),
    "bytes and a zero point": (f"{LAST} --dt=u8:s8:u8 --attr-zero-points=dst:common:3 --attr-post-ops=relu "
                               "mb1ic128ih6oc16oh6kh1", forward(k=128, row="wgmma_m64n16k32_u8_s8")),
    "two zero points": (f"{LAST} --dt=u8:s8:u8 --attr-zero-points=src:common:3+wei:common:1+dst:common:2 "
                        "--attr-post-ops=relu mb1ic64ih6oc16oh6kh3ph1",
                        forward(k=64, row="wgmma_m64n16k32_u8_s8") + " --offsets=sums"),
    "rows of 64 bytes": (f"{LAST} --dt=bf16 mb1ic32ih6oc16oh6kh3ph1", forward(k=32)),
    "rows of 32 bytes": (f"{LAST} --dt=f16 mb1ic16ih6oc16oh6kh3ph1", forward(k=16, row="wgmma_m64n16k16_f16")),
    "groups": ("--stag=axb --wtag=abxc --dtag=axb --dt=bf16 g2mb1ic128ih5iw4oc32oh5ow4kh3kw1ph1pw0", forward()),
    "groups of 16 channels": (
        "--stag=axb --wtag=abxc --dtag=axb --dt=bf16 g3mb1ic48ih5iw4oc48oh5ow4kh1kw3ph0pw1", forward(k=16),
    ),
    "groups of bytes": ("--stag=axb --wtag=abxc --dtag=axb --dt=s8:s8:s32 g2mb1ic64ih5oc32oh5kh1",
                        forward(k=32, row="wgmma_m64n16k32_s8")),
    "sums in f32": (f"{LAST} --dt=bf16:bf16:f32 mb1ic64ih5oc16oh5kh3ph1", forward(slots=4)),
    "backward by data": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb1ic64ih5oc64oh5kh3ph1",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:64 "
        "--group=mb_ih_iw:64,ic:64,oc:64 --shared=diff_dst,wei --buffers=2 --instruction=wgmma_m64n64k16_bf16_k_mn",
    ),
    "backward by data, 128 columns": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb1ic128ih4oc64oh4kh1",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:128 "
        "--group=mb_ih_iw:64,ic:128,oc:64 --shared=diff_dst,wei --buffers=2 --instruction=wgmma_m64n128k16_bf16_k_mn",
    ),
    "backward by data, twice 128 columns": (
        f"--dir=BWD_D {LAST} --dt=f16 mb1ic256ih4oc64oh4kh1",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:256 "
        "--group=mb_ih_iw:64,ic:256,oc:32 --shared=diff_dst,wei --buffers=2 --instruction=wgmma_m64n128k16_f16_k_mn",
    ),
    "backward by data, 192 columns": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb1ic192ih4oc64oh4kh1",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:192 "
        "--group=mb_ih_iw:64,ic:192,oc:64 --shared=diff_dst,wei --buffers=2 --instruction=wgmma_m64n192k16_bf16_k_mn",
    ),
    "backward by data, 160 columns": (
        f"--dir=BWD_D {LAST} --dt=f16 mb1ic160ih4oc64oh4kh1",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:160 "
        "--group=mb_ih_iw:64,ic:160,oc:32 --shared=diff_dst,wei --buffers=2 --instruction=wgmma_m64n160k16_f16_k_mn",
    ),
    "backward by weights, 96 columns": (
        f"--dir=BWD_W {LAST} --dt=bf16 mb2ic64ih5oc96oh5kh1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=mb_oh_ow --register=ic:64,oc:96 --group=ic:64,oc:96,mb_oh_ow:64 "
        "--shared=src,diff_dst --buffers=2 --instruction=wgmma_m64n96k16_bf16_mn_mn",
    ),
    "backward by weights, three groups of warps": (
        f"--dir=BWD_W {LAST} --dt=bf16 mb2ic160ih5oc64oh5kh1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=mb_oh_ow --register=ic:64,oc:64 --group=ic:192,oc:64,mb_oh_ow:64 "
        "--shared=src,diff_dst --buffers=2 --instruction=wgmma_m64n64k16_bf16_mn_mn",
    ),
    "backward by weights, 128 columns": (
        f"--dir=BWD_W {LAST} --dt=bf16 mb2ic64ih5oc128oh5kh1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=mb_oh_ow --register=ic:64,oc:128 --group=ic:64,oc:128,mb_oh_ow:64 "
        "--shared=src,diff_dst --buffers=2 --instruction=wgmma_m64n128k16_bf16_mn_mn",
    ),
    "backward by data of groups": (
        "--dir=BWD_D --stag=axb --wtag=abxc --dtag=axb --dt=f16 g2mb1ic64ih5iw4oc64oh5ow4kh3kw1ph1pw0",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:32 "
        "--group=mb_ih_iw:64,ic:32,oc:32 --shared=diff_dst,wei --buffers=2 --instruction=wgmma_m64n32k16_f16_k_mn",
    ),
    "backward by data and dilation": (
        f"--dir=BWD_D {LAST} --dt=f16 mb1ic64ih7oc64oh5kh3ph1dh1",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:64 "
        "--group=mb_ih_iw:64,ic:64,oc:64 --shared=diff_dst,wei --buffers=3 --instruction=wgmma_m64n64k16_f16_k_mn",
    ),
    "backward by data and a stride": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb2ic64ih7oc64oh4kh3ph1sh2",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --phases=ih,iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:32 "
        "--group=mb_ih_iw:64,ic:32,oc:64 --shared=diff_dst,wei --buffers=3 --instruction=wgmma_m64n32k16_bf16_k_mn",
    ),
    "backward by data and two strides": (
        f"--dir=BWD_D {LAST} --dt=f16 mb2ic64ih10iw6oc64oh4ow6kh4kw3ph1pw1sh3sw1",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --phases=ih --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:64 "
        "--group=mb_ih_iw:64,ic:64,oc:64 --shared=diff_dst,wei --buffers=2 --instruction=wgmma_m64n64k16_f16_k_mn",
    ),
    "backward by data, a stride and one tap": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb3ic32ih12oc32oh6kh1sh2",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --phases=ih,iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:16 "
        "--group=mb_ih_iw:64,ic:16,oc:16 --shared=diff_dst,wei --buffers=3 --instruction=wgmma_m64n16k16_bf16_k_mn",
    ),
    "backward by data, a stride and rounds without steps": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb1ic16ih16iw4oc64oh3ow4kh3kw1sh4dh1ph0",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --phases=ih --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:16 "
        "--group=mb_ih_iw:64,ic:16,oc:16 --shared=diff_dst,wei --buffers=3 --instruction=wgmma_m64n16k16_bf16_k_mn",
    ),
    "backward by data, strides and dilations": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb2ic16ih14iw8oc32oh3ow3kh3kw3sh4sw2dh1dw2",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --phases=ih,iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:16 "
        "--group=mb_ih_iw:64,ic:16,oc:16 --shared=diff_dst,wei --buffers=4 --instruction=wgmma_m64n16k16_bf16_k_mn",
    ),
    "backward by data of a volume and uneven phases": (
        f"--dir=BWD_D {LAST} --dt=f16 mb1ic16id5ih6iw4oc32od3oh3ow2kd1kh3kw1sd2sh2sw2ph1",
        "--lane=ic --fuse=mb+id,mb_id+ih,mb_id_ih+iw --phases=id,ih,iw --reduce=kd,kh,kw,oc --buffers=2 "
        "--register=mb_id_ih_iw:64,ic:16 --group=mb_id_ih_iw:64,ic:16,oc:32 --shared=diff_dst,wei "
        "--instruction=wgmma_m64n16k16_f16_k_mn",
    ),
    "backward by data, a stride and sums added by groups": (
        f"--dir=BWD_D {LAST} --dt=f32:bf16:bf16 mb3ic16ih12oc32oh6kh3ph1sh2",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --phases=ih,iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:16 --split=oc:2 "
        "--group=mb_ih_iw:64,ic:16,oc:16 --shared=diff_dst,wei --buffers=3 --join=atomic "
        "--instruction=wgmma_m64n16k16_bf16_k_mn",
    ),
    "deconvolution of one tap": (
        f"--deconv --dir=FWD_B {LAST} --dt=bf16 --attr-post-ops=sum+relu mb2ic32ih3oc24oh6kh1sh2",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --phases=oh,ow --reduce=kh,kw,ic --register=mb_oh_ow:64,oc:16 "
        "--group=mb_oh_ow:64,oc:16,ic:16 --shared=src,wei --buffers=1 --instruction=wgmma_m64n16k16_bf16",
    ),
    "deconvolution of dilated taps": (
        f"--deconv {LAST} --dt=s8:s8:s32 mb1ic64iw7oc16ow17kw3sw2dw1",
        "--lane=oc --fuse=mb+ow --phases=ow --reduce=kw,ic --register=mb_ow:64,oc:16 --buffers=2 "
        "--group=mb_ow:64,oc:16,ic:32 --shared=src,wei --instruction=wgmma_m64n16k32_s8",
    ),
    "backward by weights of groups": (
        "--dir=BWD_W --stag=axb --wtag=abxc --dtag=axb --dt=f16 g2mb1ic128ih8oc64oh8kh1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=mb_oh_ow --register=ic:64,oc:32 --group=ic:64,oc:32,mb_oh_ow:64 "
        "--shared=src,diff_dst --buffers=2 --instruction=wgmma_m64n32k16_f16_mn_mn",
    ),
    "backward by weights, taps and a stride": (
        f"--dir=BWD_W {LAST} --dt=bf16:f32:bf16 mb2ic128ih8oc128oh4kh2ph0sh2",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=mb_oh_ow --register=ic:64,oc:128 --group=ic:128,oc:128,mb_oh_ow:64 "
        "--shared=src,diff_dst --buffers=2 --instruction=wgmma_m64n64k16_bf16_mn_mn",
    ),
    "backward by weights in parts": (
        f"--dir=BWD_W {LAST} --dt=bf16 mb2ic64ih8oc64oh8kh1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=mb_oh_ow --register=ic:64,oc:64 --group=ic:64,oc:64,mb_oh_ow:64 "
        "--shared=src,diff_dst --split=mb:2 --instruction=wgmma_m64n64k16_bf16_mn_mn",
    ),
    "a cluster of columns": (f"{LAST} --dt=bf16 mb2ic64ih8oc32oh8kh1", forward() + " --cluster=oc:2"),
    "a cluster of rows": (f"{LAST} --dt=bf16 mb2ic64ih9oc32oh9kh3ph1",
                          forward(n=32, slots=2, row="wgmma_m64n32k16_bf16") + " --cluster=mb_oh_ow:2"),
    "a cluster of four": (f"{LAST} --dt=s8:s8:s32 mb1ic128ih9oc72oh5kh3ph1sh2",
                          forward(k=128, row="wgmma_m64n16k32_s8") + " --cluster=oc:4"),
    "clusters, blocks and a tail": (f"{LAST} --dt=bf16 mb3ic64ih8oc40oh8kh1",
                                    forward() + " --cluster=oc:2 --l2=mb_oh_ow:128 --order=oc,mb_oh_ow"),
    "clusters of groups": ("--stag=axb --wtag=abxc --dtag=axb --dt=bf16 g2mb1ic128ih5iw4oc64oh5ow4kh3kw1ph1pw0",
                           forward() + " --cluster=oc:2"),
    "clusters, channels added by groups": (f"{LAST} --dt=bf16:bf16:f32 mb1ic128ih5oc24oh5kh3ph1",
                                           forward() + " --cluster=oc:2 --split=ic:2 --join=atomic"),
    "clusters backward by data and a stride": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb2ic64ih7oc64oh4kh3ph1sh2",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --phases=ih,iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:32 --cluster=ic:2 "
        "--group=mb_ih_iw:64,ic:32,oc:64 --shared=diff_dst,wei --buffers=3 --instruction=wgmma_m64n32k16_bf16_k_mn",
    ),
    "clusters backward by weights": (
        f"--dir=BWD_W {LAST} --dt=bf16 mb2ic128ih5oc96oh5kh1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=mb_oh_ow --register=ic:64,oc:96 --group=ic:64,oc:96,mb_oh_ow:64 "
        "--shared=src,diff_dst --buffers=2 --instruction=wgmma_m64n96k16_bf16_mn_mn --cluster=ic:2",
    ),
    "stored tiles": (f"{LAST} --dt=bf16 {_SHAPES['tiles']}", stored(forward())),
    "stored tiles of two groups of warps": (
        f"{LAST} --dt=bf16 mb1ic32ih13oc72oh13kh1",
        stored(forward(128, n=96, k=32, slots=2, row="wgmma_m64n96k16_bf16")),
    ),
    "stored tiles of three groups of warps": (
        f"{LAST} --dt=bf16 mb1ic32ih15oc24oh15kh1", stored(forward(192, k=32, slots=2)),
    ),
    "clusters of three groups of warps": (
        f"{LAST} --dt=bf16 mb1ic64ih15oc32oh15kh1", forward(192, slots=2) + " --cluster=oc:2",
    ),
    "stored tiles, groups and post-ops": (
        "--dir=FWD_B --stag=axb --wtag=abxc --dtag=axb --dt=f16 --attr-post-ops=sum:2+binary_add:f32:per_oc+clip:-8:40 "
        "g2mb1ic32ih5iw4oc64oh5ow4kh1kw1ph0pw0", stored(forward(n=32, k=16, row="wgmma_m64n32k16_f16")),
    ),
    "stored tiles of f32": (f"{LAST} --dt=bf16:bf16:f32 mb1ic64ih5oc16oh5kh1",
                            stored(forward(n=32, row="wgmma_m64n32k16_bf16"))),
    "stored tiles, backward by weights": (
        f"--dir=BWD_W {LAST} --dt=bf16 mb2ic64ih5oc96oh5kh1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=mb_oh_ow --register=ic:64,oc:96 --group=ic:64,oc:96,mb_oh_ow:64 "
        "--shared=src,diff_dst,diff_wei --buffers=2 --instruction=wgmma_m64n96k16_bf16_mn_mn",
    ),
    "stored tiles in two parts": (
        f"{LAST} --dt=bf16 mb1ic32ih13oc136oh13kh1",
        stored(forward(128, n=128, k=32, slots=2, row="wgmma_m64n128k16_bf16")) + " --store_parts=2",
    ),
    "stored tiles in four parts, groups and post-ops": (
        "--dir=FWD_B --stag=axb --wtag=abxc --dtag=axb --dt=f16 --attr-post-ops=sum:2+binary_add:f32:per_oc+clip:-8:40 "
        "g2mb1ic32ih5iw4oc128oh5ow4kh1kw1ph0pw0",
        stored(forward(n=64, k=16, row="wgmma_m64n64k16_f16")) + " --store_parts=4",
    ),
    "stored tiles of f32 in two parts": (
        f"{LAST} --dt=bf16:bf16:f32 mb1ic64ih5oc40oh5kh1",
        stored(forward(n=32, row="wgmma_m64n32k16_bf16")) + " --store_parts=2",
    ),
    "stored tiles in two parts, of two products": (
        f"{LAST} --dt=bf16 mb1ic32ih9oc72oh9kh1",
        stored(forward(n=64, k=32, slots=2, row="wgmma_m64n32k16_bf16")) + " --store_parts=2",
    ),
    "stored tiles in two parts, backward by weights": (
        f"--dir=BWD_W {LAST} --dt=bf16 mb2ic64ih5oc96oh5kh1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=mb_oh_ow --register=ic:64,oc:96 --group=ic:64,oc:96,mb_oh_ow:64 "
        "--shared=src,diff_dst,diff_wei --buffers=2 --instruction=wgmma_m64n96k16_bf16_mn_mn --store_parts=2",
    ),
    "stored tiles in two parts of 16 columns, backward by weights": (
        f"--dir=BWD_W {LAST} --dt=bf16 mb2ic64ih5oc32oh5kh1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=mb_oh_ow --register=ic:64,oc:32 --group=ic:64,oc:32,mb_oh_ow:64 "
        "--shared=src,diff_dst,diff_wei --buffers=2 --instruction=wgmma_m64n32k16_bf16_mn_mn --store_parts=2",
    ),
    "channels in parts": (f"{LAST} --dt=bf16 mb1ic256ih5oc24oh5kh3ph1", forward() + " --split=ic:4"),
    "taps in parts": (f"{LAST} --dt=f16 mb1ic64ih5iw4oc24oh5ow4kh3kw3ph1pw1",
                      forward(row="wgmma_m64n16k16_f16") + " --split=kw:3"),
    "parts and an epilogue": (f"--dir=FWD_B {LAST} --dt=bf16 --attr-post-ops=sum:2+relu mb1ic256ih7oc24oh7kh1",
                              forward() + " --split=ic:2"),
    "parts, scales and bytes": (
        f"--dir=FWD_B {LAST} --dt=s8:s8:s8 --attr-scales=src:common:0.5+wei:per_oc mb1ic256ih5oc24oh5kh1",
        forward(k=128, row="wgmma_m64n16k32_s8") + " --split=ic:2",
    ),
    "parts and zero points": (
        f"{LAST} --dt=u8:s8:u8 --attr-zero-points=src:common:3+wei:common:1+dst:common:2 mb1ic128ih6oc16oh6kh3ph1",
        forward(k=64, row="wgmma_m64n16k32_u8_s8") + " --offsets=sums --split=ic:2",
    ),
    "groups in parts": (
        "--stag=axb --wtag=abxc --dtag=axb --dt=bf16 g2mb1ic256ih5iw4oc32oh5ow4kh3kw1ph1pw0",
        forward() + " --split=ic:2",
    ),
    "backward by data in parts": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb1ic64ih5oc128oh5kh3ph1",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:64 --group=mb_ih_iw:64,ic:64,oc:64"
        " --shared=diff_dst,wei --buffers=2 --split=oc:2 --instruction=wgmma_m64n64k16_bf16_k_mn",
    ),
    "backward by data, a stride and parts": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb2ic64ih7oc128oh4kh3ph1sh2",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --phases=ih,iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:32 "
        "--group=mb_ih_iw:64,ic:32,oc:64 --shared=diff_dst,wei --buffers=3 --split=oc:2 "
        "--instruction=wgmma_m64n32k16_bf16_k_mn",
    ),
    "backward by weights in parts of fused pixels": (
        f"--dir=BWD_W {LAST} --dt=bf16 mb7ic64ih7oc64oh7kh1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=mb_oh_ow --register=ic:64,oc:64 --group=ic:64,oc:64,mb_oh_ow:64 "
        "--shared=src,diff_dst --buffers=2 --split=mb_oh_ow:3 --instruction=wgmma_m64n64k16_bf16_mn_mn",
    ),
    "backward by weights, added by groups": (
        f"--dir=BWD_W {LAST} --dt=bf16:f32:bf16 mb3ic64ih7iw6oc64oh7ow7kh1kw2ph0pw1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=mb_oh_ow --register=ic:64,oc:64 --group=ic:64,oc:64,mb_oh_ow:64 "
        "--shared=src,diff_dst --buffers=2 --split=mb_oh_ow:3 --join=atomic --instruction=wgmma_m64n64k16_bf16_mn_mn",
    ),
    "channels added by groups": (f"{LAST} --dt=bf16:bf16:f32 mb1ic128ih5oc24oh5kh3ph1",
                                 forward() + " --split=ic:2 --join=atomic"),
    "taps added by groups": (f"{LAST} --dt=f16:f16:f32 mb1ic64ih5oc24oh5kh3ph1",
                             forward(row="wgmma_m64n16k16_f16") + " --split=kh:3 --join=atomic"),
    "bytes added by groups": (f"{LAST} --dt=s8:s8:s32 mb1ic256ih9oc24oh9kh1",
                              forward(k=128, row="wgmma_m64n16k32_s8") + " --split=ic:2 --join=atomic"),
    "channels and taps in parts": (f"--dir=FWD_B {LAST} --dt=bf16 --attr-post-ops=relu mb1ic128ih5oc24oh5kh3ph1",
                                   forward() + " --split=kh:3,ic:2"),
    "channels and taps added by groups": (f"{LAST} --dt=bf16:bf16:f32 mb1ic128ih5oc24oh5kh3ph1",
                                          forward() + " --split=kh:3,kw:3,ic:2 --join=atomic"),
    "backward by data, a stride and parts of two loops": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb2ic64ih4iw7oc128oh5ow4kh2kw3ph1pw1sw2",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --phases=iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:32 "
        "--group=mb_ih_iw:64,ic:32,oc:64 --shared=diff_dst,wei --buffers=3 --split=kh:2,oc:2 "
        "--instruction=wgmma_m64n32k16_bf16_k_mn",
    ),
    "backward by data, added by groups": (
        f"--dir=BWD_D {LAST} --dt=f32:bf16:bf16 mb1ic64ih5oc128oh5kh3ph1",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:64 --group=mb_ih_iw:64,ic:64,oc:64"
        " --shared=diff_dst,wei --buffers=2 --split=oc:2 --join=atomic --instruction=wgmma_m64n64k16_bf16_k_mn",
    ),
    "backward by weights": (
        f"--dir=BWD_W {LAST} --dt=bf16 mb2ic64ih5oc64oh5kh1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=mb_oh_ow --register=ic:64,oc:64 --group=ic:64,oc:64,mb_oh_ow:64 "
        "--shared=src,diff_dst --buffers=2 --instruction=wgmma_m64n64k16_bf16_mn_mn",
    ),
    "product": (
        "--matmul --dt=bf16 72x128:128x64",
        "--lane=n --register=m:64,n:64 --group=m:64,n:64,k:64 --shared=src,wei --buffers=2 "
        "--instruction=wgmma_m64n64k16_bf16_k_mn",
    ),
}  # fmt: skip
"""Problems of all kinds with their configs."""


def compiled(line: str, words: str, machine: Machine | None = None) -> Artifact:
    """Return the artifact of a problem under a config of sm_90a, or of a ``machine`` like it."""
    with no_collection(), one_table():
        config = Config.parse(f"--target={LEVEL} --pack= --realise=hardware {words}")
        plan = plan_for(parse_problem(line), config, machine or target(LEVEL))
        return emit(plan, lower(plan))


@cache
def hopper_artifact(kind: str) -> Artifact:
    """Return the artifact of one of the KINDS."""
    return compiled(*KINDS[kind])
