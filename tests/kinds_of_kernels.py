"""Tiny problems of every kind with their configs: the words after `--target=`, by the name of the kind."""

from __future__ import annotations

from kinds_of_fragments import FRAGMENTS

KINDS = {
    "1x1": ("mb1ic5iw7oc6ow7kw1", "--lane=oc --register=oc:4,ow:3"),
    "padded": ("mb1ic3ih4iw5oc5oh4ow5kh3kw3ph1pw1", "--lane=oc --register=oc:4,ow:3 --reduce=kh,kw,ic"),
    "3d": ("mb1ic2id3ih3iw3oc3od3oh2ow3kd2kh2kw1pd1", "--lane=oc --register=oc:4,ow:2,od:2 --reduce=kd,kh,kw,ic"),
    "stride": ("mb2ic3ih5iw6oc4oh3ow3kh3kw2sh2sw2ph1pw0", "--lane=oc --register=oc:4,oh:2,ow:2"),
    "dilation": ("mb1ic2iw9oc5ow9kw3dw2pw3", "--lane=oc --register=oc:8,ow:4 --reduce=kw,ic"),
    "asymmetric-pads": ("mb1ic3ih4iw4oc3oh6ow3kh3kw2ph3pw0", "--lane=oc --register=oc:4,ow:2"),
    "negative-back-pads": ("mb1ic2ih6iw7oc3oh2ow3kh2kw1sh3sw3", "--lane=oc --register=oc:4,ow:2"),
    "only-padding": ("mb1ic2iw3oc3ow2kw1sw9pw4", "--lane=oc --register=oc:4"),
    "groups": ("g3mb1ic6iw5oc9ow5kw3pw1", "--lane=oc --register=oc:4,ow:2"),
    "groups-along-lanes": ("g5mb1ic5ih3iw4oc5oh3ow4kh3kw3ph1pw1", "--lane=g --register=g:4,ow:2 --reduce=kh,kw,ic"),
    "groups-and-channels": ("g3mb1ic6iw5oc6ow5kw3pw1", "--lane=g_oc --fuse=g+oc --register=g_oc:4,ow:2"),
    "groups-in-part-of-a-vector": ("g5mb1ic10iw5oc15ow5kw3pw1", "--lane=g_oc --fuse=g+oc --register=g_oc:6,ow:2"),
    "groups-in-part-of-a-vector-by-weights": (
        "--dir=BWD_W --stag=axb --dtag=axb g3mb2ic9iw5oc9ow5kw3pw1",
        "--lane=g_oc --fuse=g+oc --register=ic:2,g_oc:3,kw:2 --pack=",
    ),
    "lanes-along-pixels-that-meet-padding": (
        "--dir=BWD_W mb2ic3ih3iw9oc2oh3ow9kh3kw3ph1pw1", "--lane=ow --register=ic:2,oc:2 --pack=",
    ),
    "lanes-along-pixels-that-meet-padding-for-each-tap": (
        "--dir=BWD_W mb1ic2iw6oc3ow5kw5pw2", "--lane=ow --register=ic:2,oc:2,kw:3 --pack=",
    ),
    "lanes-along-pixels-in-too-many-pieces": (
        "--dir=BWD_W mb1ic2iw6oc2ow6kw5pw2", "--lane=ow --register=ic:2,oc:2 --pack= --pieces=2",
    ),
    "lanes-along-pixels-in-blocks-of-rows": (
        "--dir=BWD_W mb1ic2ih4iw6oc2oh4ow6kh3kw3ph1pw1", "--lane=ow --register=ic:2,oc:2 --pack= --cache=oh:3",
    ),
    "lanes-within-blocks-of-channels-by-weights": (
        "--dir=BWD_W --stag=aBx4b --dtag=aBx4b mb2ic10iw5oc6ow5kw3pw1", "--lane=ic --register=oc:2,ic:8 --pack=",
    ),
    "vectors-across-blocks-of-channels": (
        "--stag=aBx4b --dtag=aBx4b g4mb1ic8iw5oc12ow5kw1", "--lane=oc --register=oc:4,ow:2",
    ),
    "rows-packed-once-for-taps": (
        "--dir=BWD_W mb2ic3ih5iw5oc5oh3ow5kh3kw3sh2sw1ph1pw1",
        "--lane=oc --register=ic:2,oc:4 --pack=src,diff_dst --realise=pad_copy",
    ),
    "rows-unfolded-to-channels": (
        "--dir=BWD_W --stag=axb --dtag=axb mb2ic3ih5iw5oc5oh3ow3kh3kw3sh2sw2ph1pw1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --register=ic:2,oc:4 --reduce=mb_oh_ow --pack=src,diff_dst --unfold=src",
    ),
    "rows-unfolded-to-pixels": (
        "--dir=BWD_W mb2ic6ih4iw5oc3oh4ow5kh3kw3ph1pw1",
        "--lane=ic --fuse=mb+oh,mb_oh+ow --register=ic:4,oc:2 --reduce=mb_oh_ow --pack=src,diff_dst"
        " --unfold=src,diff_dst",
    ),
    "lanes-along-pixels-far-apart": (
        "--dir=BWD_W --dtag=axb mb1ic2iw11oc2ow5kw3sw2dw1pw1", "--lane=ow --register=ic:2,oc:2,kw:2 --pack=",
    ),
    "lanes-along-input": ("mb1ic6ih3iw4oc2oh3ow4kh3kw1ph1", "--lane=ic --register=oc:2,ow:3 --reduce=kh,kw,ic"),
    "lanes-along-taps": ("mb1ic1iw12oc2ow8kw5", "--lane=kw --register=oc:2,ow:4"),
    "lanes-along-pixels": ("mb1ic3iw13oc4ow13kw1", "--lane=ow --register=ow:4,oc:3"),
    "fused-pixels": ("mb1ic3ih4iw5oc5oh4ow5kh1kw1", "--lane=oc --fuse=oh+ow --register=oc:4,oh_ow:6"),
    "fused-reduction": ("mb1ic3iw5oc4ow5kw3pw1", "--lane=oc --fuse=kw+ic --register=oc:4,kw_ic:2"),
    "reduction-tiles": ("mb1ic5iw5oc5ow5kw3pw1", "--lane=oc --register=oc:4,ow:2,ic:3,kw:2"),
    "packed-in-pieces": (
        "--matmul --dt=u8:s8:s32 --stag=ba 5x36:36x3", "--lane=n --register=m:2,n:4 --k_step=k:4 --pack=src,wei",
    ),
    "tiles-with-ends": ("mb1ic11iw4oc5ow4kw3pw1", "--lane=oc --register=ow:2,oc:4,ic:2 --first_last_tile=ic:3,ic:2"),
    "rows-to-their-borders": (
        "g2mb1ic2ih4iw6oc2oh4ow6kh3kw3ph1pw1",
        "--lane=ow --register=oc:1,oh:2,ow:4,kh:3 --order=mb,g,oh,ow,oc --reduce=kw,ic,kh",
    ),
    "rows-to-their-borders-of-a-stride": (
        "--attr-post-ops=relu mb1ic2ih3iw9oc3oh2ow5kh3kw3sh2sw2ph1pw1",
        "--lane=ow --register=oc:2,ow:8 --reduce=kh,ic,kw --threads=2",
    ),
    "weights-prefetched": ("mb1ic5iw4oc9ow4kw3pw1", "--lane=oc --register=oc:4,ow:2 --stream=wei"),
    "weights-of-the-next-tile-fetched": (
        "--stag=axb --dtag=axb mb1ic8ih3iw4oc12oh3ow4kh1kw1",
        "--lane=oc --fuse=oh+ow,mb+oh_ow --register=mb_oh_ow:3,oc:4 --order=oc,mb_oh_ow --reduce=kh,kw,ic --fetch=wei",
    ),
    "pixels-of-the-next-tile-fetched": (
        "--stag=aBx4b --dtag=axb mb1ic8ih3iw4oc7oh3ow4kh1kw1",
        "--lane=oc --fuse=oh+ow --register=oh_ow:5,oc:4 --order=mb,oc,oh_ow --reduce=kh,kw,ic --fetch=src",
    ),
    "pixels-of-the-tile-below-fetched": (
        "--stag=axb --dtag=axb g8mb1ic8ih4iw3oc8oh4ow3kh3kw3ph1pw1",
        "--lane=g --register=oh:2,ow:2,g:4,kh:3,kw:3 --order=mb,oh,ow,g,oc --reduce=ic,kh,kw --fetch=src",
    ),
    "next-block-of-a-gradient-fetched": (
        "--dir=BWD_W --stag=axb --wtag=axb --dtag=axb mb2ic17ih4iw3oc18oh4ow3kh1kw1",
        "--lane=oc --register=ic:3,oc:4 --order=oc,ic --reduce=mb,oh,ow --cache=mb:1,oh:2 --pack= --fetch=src,diff_dst",
    ),
    "rows-of-vectors-against-taps": (
        "--deconv --stag=abx --dtag=abx g2mb1ic2ih4iw5oc2oh5ow7kh3kw3ph0pw0",
        "--lane=ow --register=oc:1,oh:3,ow:4,kh:3 --order=mb,g,oh,ow,oc --reduce=kw,ic,kh --realise=pad_copy",
    ),
    "pixels-prefetched": ("mb1ic5iw9oc4ow9kw3pw1", "--lane=ow --register=oc:4,ow:4 --stream=src"),
    "packed-near": (
        "mb1ic5ih5oc6oh5kh1ph0",
        "--lane=oc --fuse=oh+ow --register=oc:4,oh_ow:3 --order=mb,oh_ow,oc --pack_at=src+oh_ow",
    ),
    "blocks": ("mb1ic5iw4oc9ow4kw3pw1", "--lane=oc --register=oc:4,ow:2 --cache=oc:8,ic:2"),
    "bias-relu": ("--dir=FWD_B --attr-post-ops=relu mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --register=oc:4,ow:2"),
    "bias-leaky-clip": (
        "--dir=FWD_B --attr-post-ops=relu:0.5+clip:-2:6 mb1ic3iw5oc5ow5kw3pw1", "--lane=ic --register=oc:2,ow:2",
    ),
    "terms-of-taps-and-channels": (
        "--dt=u8:s8:s32 --stag=axb mb1ic3ih3iw5oc5oh3ow3kh2kw3ph1pw1sw2",
        "--lane=oc --fuse=kw+ic --register=oc:4,ow:2 --k_step=kw_ic:4 --realise=pad_copy",
    ),
    "terms-of-taps-and-channels-peeled": (
        "--dt=bf16:bf16:f32 --stag=axb mb1ic3iw7oc5ow7kw3pw1",
        "--lane=oc --fuse=kw+ic --register=oc:4,ow:2 --k_step=kw_ic:2",
    ),
    "terms-side-by-side": (
        "--dt=u8:s8:s32 mb2ic5ih3iw4oc5oh3ow4kh3kw1ph1",
        "--lane=oc --register=oc:4,ow:2 --k_step=ic:4 --realise=pad_copy",
    ),
    "terms-side-by-side-without-masks": (
        "--dt=bf16:bf16:f32 mb2ic6ih3iw4oc5oh3ow4kh1kw1",
        "--lane=oc --register=oc:4,ow:2 --k_step=ic:2 --realise=pad_copy",
    ),
    "long-post-ops": (
        "--attr-post-ops=relu:0.5+linear:2:1 g3mb1ic3iw5oc15ow5kw3pw1",
        "--lane=oc --register=oc:4,ow:2 --spill_sums=yes",
    ),
    "long-post-ops-threads": (
        "--dt=u8:s8:u8 --attr-post-ops=square+linear:0.5:1 mb2ic3iw5oc5ow5kw3pw1",
        "--lane=oc --register=oc:8,ow:3 --spill_sums=yes --threads=2",
    ),
    "integer-steps": (
        "--dt=u8:s8:u8 --attr-post-ops=s32_add:per_oc+s32_mulh:common:1518500250+s32_rshift:common:3"
        " mb1ic3iw5oc5ow5kw3pw1",
        "--lane=oc --register=oc:4,ow:2",
    ),
    "integer-steps-drained": (
        "--dt=u8:s8:s16 --attr-post-ops=s32_shl:per_oc+s32_mulh:per_oc+s32_rshift:per_oc+s32_rescale:65025:105"
        " mb1ic3iw5oc5ow5kw3pw1",
        "--lane=oc --register=oc:4,ow:2 --spill_sums=yes",
    ),
    "channels-last": ("--stag=axb --dtag=axb mb2ic3iw5oc5ow5kw3pw1", "--lane=oc --register=oc:4,ow:3"),
    "blocked": ("--stag=aBcd4b --dtag=aBcd4b mb1ic5ih3iw3oc6oh3ow3kh3kw3ph1pw1", "--lane=oc --register=oc:4,ow:3"),
    "blocked-twice": ("--stag=aBc4b --dtag=ABc4b2a --wtag=ABc4b4a mb3ic5iw4oc3ow4kw3pw1", "--lane=oc --register=oc:4"),
    "slack": ("--dtag=a:1:99_b:5:19_c:5:3 mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --register=oc:4,ow:2"),
    "mask": ("mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --register=oc:4,ow:2 --realise=mask"),
    "pad-copy": ("mb2ic2ih3iw4oc5oh3ow4kh3kw3ph1pw1", "--lane=oc --register=oc:4,ow:3 --realise=pad_copy"),
    "pad-copy-with-rows-that-exist": (
        "mb2ic2ih3iw4oc5oh3ow4kh3kw3ph1pw1", "--lane=oc --register=oc:4,ow:3 --realise=pad_copy --restrict=kh",
    ),
    "pad-copy-of-terms-with-planes-that-exist": (
        "--dt=bf16:bf16:f32 --dir=BWD_D mb1ic5id2ih3iw3oc3od3oh2ow3kd4kh3kw3pd2ph1pw1",
        "--lane=ic --register=ic:4,iw:2 --k_step=oc:2 --realise=pad_copy --restrict=kd,kh",
    ),
    "pad-copy-of-rows-that-exist-for-each-thread": (
        "mb2ic2ih4iw4oc5oh4ow4kh3kw3ph1pw1",
        "--lane=oc --register=oc:4,ow:3 --realise=pad_copy --restrict=kh --threads=2",
    ),
    "pad-copy-that-converts": (
        "--dt=f16:f16:f32 --stag=axb mb2ic5ih3iw4oc5oh3ow4kh3kw3ph1pw1",
        "--lane=oc --register=oc:4,ow:3 --realise=pad_copy",
    ),
    "indirection": (
        "mb2ic3ih4iw5oc5oh4ow5kh3kw3ph1pw1", "--lane=oc --register=oc:4,ow:3 --reduce=kh,kw,ic --realise=indirection",
    ),
    "indirection-by-rows": (
        "--stag=axb g5mb1ic5ih4iw4oc5oh2ow2kh3kw3sh2sw2ph1pw1",
        "--lane=g --register=g:4 --reduce=kh,kw,ic --realise=indirection --table=row",
    ),
    "indirection-compressed": (
        "--stag=aBcd2b mb1ic3ih4iw7oc5oh3ow5kh2kw3ph0pw0", "--lane=oc --register=oc:4,ow:2 --realise=indirection "
        "--table=compressed",
    ),
    "indirection-3d": (
        "mb1ic2id4ih4iw3oc3od4oh4ow3kd3kh2kw1pd1ph0pw0", "--lane=oc --register=oc:4,oh:2 --realise=indirection",
    ),
    "indirection-backward": (
        "--dir=BWD_D mb1ic5ih5oc3oh3kh3kw2iw4ow2sh2sw2ph1",
        "--lane=ic --register=ic:4,iw:2 --realise=indirection --table=column --threads=2",
    ),
    "indirection-weights": (
        "--dir=BWD_W mb2ic2ih3iw3oc5oh3ow3kh2kw2ph1pw1", "--lane=oc --register=oc:4,ic:2 --realise=indirection",
    ),
    "indirection-lanes-along-input": (
        "--stag=axb mb1ic6ih3iw4oc2oh3ow4kh3kw1ph1", "--lane=ic --register=oc:2,ow:3 --realise=indirection",
    ),
    "indirection-bytes": (
        "--dt=u8:s8:s32 --stag=axb mb1ic5ih3iw3oc5oh3ow3kh2kw2pw1",
        "--lane=oc --register=oc:4,ow:2 --k_step=ic:4 --realise=indirection",
    ),
    "not-packed": ("mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --register=oc:4,ow:2 --pack="),
    "threads": ("mb2ic2ih3iw5oc3oh3ow5kh2kw3ph1pw1", "--lane=oc --register=oc:4,ow:3 --reduce=kh,kw,ic --threads=2"),
    "one-function": ("mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --register=oc:4,ow:2 --outline=no"),
    "threads-on-one-image": ("mb1ic3iw9oc3ow9kw3pw1", "--lane=oc --register=oc:4,ow:3 --threads=2"),
    "parts": ("--dir=FWD_B mb2ic6iw5oc5kw3pw1", "--lane=oc --register=oc:4,ow:2 --split=ic:3 --threads=2"),
    "parts-of-weights": ("--dir=BWD_W --dtag=axb mb2ic3iw5oc5ow5kw3pw1", "--lane=oc --register=oc:4 --split=mb:2"),
    "parts-of-bytes": (
        "--dt=u8:s8:u8 --dtag=aBc4b --attr-zero-points=src:common:3+wei:per_oc --attr-post-ops=relu mb1ic8iw3oc6kw2pw1",
        "--lane=oc --register=oc:4 --k_step=ic:4 --split=ic:2 --offsets=sums",
    ),
    "few-pieces": ("mb1ic3iw5oc6ow5kw1", "--lane=oc --register=oc:4,ow:3 --pieces=1"),
    "vanishing-loops": ("mb1ic1iw1oc1ow1kw1", "--lane=oc --register=oc:4"),
    "strided-backward": ("--dir=BWD_D mb1ic5ih5oc3oh3kh3kw2iw4ow2sh2sw2ph1", "--lane=ic --register=ic:4,iw:2"),
    "strided-backward-dilated": (
        "--dir=BWD_D g2mb1ic4iw7oc6ow3kw3dw1sw2pw2",
        "--lane=ic --register=ic:4 --reduce=kw,oc",
    ),
    "strided-backward-mask": ("--dir=BWD_D mb1ic5iw7oc3ow3kw3sw3", "--lane=ic --register=ic:4,iw:2 --realise=mask"),
    "phases": (
        "--deconv --dir=FWD_B --attr-post-ops=relu mb1ic2iw3oc1ow14kw7sw4pw1",
        "--lane=rw --phases=ow --register=rw:4,ow:2",
    ),
    "phases-and-channels": (
        "--deconv --dtag=axb mb1ic2iw3oc2ow10kw6sw3pw1",
        "--lane=rw_oc --phases=ow --fuse=rw+oc --register=rw_oc:8,ow:2 --reduce=kw,ic",
    ),
    "phases-of-two-axes": (
        "--dir=BWD_D mb1ic2ih6iw8oc2oh3ow2kh3kw4sh2sw4ph0pw0",
        "--lane=rw --phases=ih,iw --register=rw:4,iw:2 --reduce=kh,kw,oc --threads=2",
    ),
    "phases-beside-classes": (
        "--dir=BWD_D mb1ic1ih6iw8oc2oh3ow2kh3kw4sh2sw4ph1pw0", "--lane=rw --phases=iw --register=rw:4,iw:2",
    ),
    "phases-of-one-pixel": ("--dir=BWD_D mb1ic1ih4iw4oc3oh2ow1kh3kw4", "--lane=rw --phases=iw --register=rw:4,ih:2"),
    "phases-without-pixels-or-taps": ("--dir=BWD_D mb1ic2iw6oc2ow2kw2sw5pw1", "--lane=rw --phases=iw --register=rw:4"),
    "phases-outside-the-lanes": ("--deconv mb1ic6iw3oc2ow11kw5sw4pw1", "--lane=ic --phases=ow --register=ow:2,oc:2"),
    "phases-of-a-copy": (
        "--deconv --stag=axb mb1ic3iw4oc1ow13kw5sw4pw2",
        "--lane=rw --phases=ow --register=rw:4,ow:2 --realise=pad_copy --cache=ow:4,ic:2",
    ),
    "phases-without-taps-in-cache-tiles": (
        "--deconv mb1ic4iw3oc2ow11kw3sw4pw1",
        "--lane=oc --phases=ow --register=ow:2,oc:4 --reduce=kw,ic --cache=ow:4,ic:2",
    ),
    "phases-of-bytes": (
        "--deconv --dt=u8:s8:s32 --attr-zero-points=src:common:3+wei:common:2 mb1ic4iw3oc2ow11kw5sw4pw1",
        "--lane=rw --phases=ow --register=rw:4,ow:2 --offsets=sums",
    ),
    "backward": (
        "--dir=BWD_D --dtag=axb mb2ic5ih3iw3oc2oh3ow3kh3kw2ph1pw1",
        "--lane=ic --register=ic:4,iw:3 --threads=2",
    ),
    "backward-quantised": (
        "--dir=BWD_D --dt=s8:s8:u8 --attr-scales=src:per_oc+wei:common:0.5 mb1ic5iw4oc6ow4kw3pw1",
        "--lane=ic --register=ic:4,iw:2 --k_step=oc:4",
    ),
    "weights": (
        "--dir=BWD_W mb2ic2ih3iw3oc5oh3ow3kh2kw2ph1pw1",
        "--lane=oc --register=oc:4,ic:2 --pack=diff_dst --reduce=mb,oh,ow",
    ),
    "weights-not-packed": ("--dir=BWD_W --dtag=axb mb2ic3iw9oc5ow4kw3sw2", "--lane=oc --register=oc:4,kw:3 --pack="),
    "weights-of-groups": (
        "--dir=BWD_W --dt=bf16:f32:bf16 g3mb1ic6iw5oc6ow5kw3pw1",
        "--lane=ic --register=ic:4 --pack=",
    ),
    "deconvolution": ("--deconv mb1ic2ih3iw3oc5oh5ow5kh3kw3sh2sw2ph1pw1", "--lane=oc --register=oc:4,ow:2"),
    "deconvolution-backward": ("--deconv --dir=BWD_D mb1ic5iw3oc3ow5kw3sw2pw1", "--lane=ic --register=ic:4,iw:2"),
    "deconvolution-weights": ("--deconv --dir=BWD_W mb2ic5iw3oc3ow5kw3sw2pw1", "--lane=ic --register=ic:4 --pack=src"),
    "matmul": ("--matmul --bia-dt=f32 5x3:3x6", "--lane=n --register=n:4,m:2"),
    "matmul-batched": ("--matmul --stag=acb --wtag=acb 3x4x3:3x3x5", "--lane=n --register=n:4,m:3 --threads=2"),
    "matmul-shared": ("--matmul --dtag=acb 3x4x3:1x3x5", "--lane=n --fuse=b0+m --register=n:4,b0_m:3"),
    "matmul-dot": ("--matmul --dt=u8:s8:s32 3x7:7x5", "--lane=n --register=n:4,m:2 --k_step=k:4"),
    "bytes": ("--dt=u8:s8:s32 mb1ic5ih3iw3oc5oh2ow3kh2kw2pw1", "--lane=oc --register=oc:4,ow:2 --k_step=ic:4"),
    "weights-of-4-bits": (
        "--dt=u8:s4:s32 mb1ic5ih3iw3oc5oh2ow3kh2kw2pw1", "--lane=oc --register=oc:4,ow:2 --k_step=ic:4",
    ),
    "weights-of-4-bits-beside-floats": (
        "--dt=f32:u4:f32 --stag=axb --dtag=axb mb1ic3iw4oc6ow4kw3pw1", "--lane=oc --register=oc:4,ow:2",
    ),
    "bytes-channels-last": (
        "--dt=u8:s8:u8 --stag=axb --dtag=axb mb1ic5iw4oc5ow4kw3pw1", "--lane=oc --register=oc:8,ow:2 --k_step=ic:4",
    ),
    "bytes-blocked": (
        "--dt=s8:s8:s8 --stag=aBc4b --dtag=aBc4b mb1ic7iw5oc5ow3kw3", "--lane=oc --register=oc:4 --k_step=ic:2",
    ),
    "bytes-groups": (
        "--dt=u8:s8:f32 g2mb1ic6iw4oc6ow4kw3pw1",
        "--lane=g_oc --fuse=g+oc --register=g_oc:3 --k_step=ic:4",
    ),
    "bytes-masked": ("--dt=u8:s8:s32 mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --register=oc:4 --k_step=ic:4 --realise=mask"),
    "bytes-copied": (
        "--dt=u8:s8:s32 mb1ic6iw5oc5ow5kw3pw1",
        "--lane=oc --register=oc:4 --k_step=ic:4 --realise=pad_copy",
    ),
    "bytes-widened": ("--dt=u8:u8:s32 mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --register=oc:4,ow:2"),
    "bytes-of-one-channel": ("--dt=s8:s8:s32 mb1ic1iw5oc5ow5kw3pw1", "--lane=oc --register=oc:4 --k_step=ic:2"),
    "bytes-only-padding": ("--dt=u8:s8:s32 mb1ic6iw3oc4ow2kw1sw9pw4", "--lane=oc --register=oc:4 --k_step=ic:4"),
    "bf16-beside-slack": ("--matmul --dt=bf16 --stag=aB4b 2x3:3x5", "--lane=n --register=n:4 --k_step=k:2"),
    "empty-classes": ("--dir=BWD_D mb1ic4iw9oc2ow3kw2sw4", "--lane=ic --register=ic:4 --reduce=kw,oc --realise=mask"),
    "empty-classes-of-terms": ("--dir=BWD_D mb1ic4iw9oc2ow3kw2sw4", "--lane=ic --register=ic:4 --k_step=kw:2"),
    "classes-in-threads": (
        "--dir=BWD_D mb1ic4iw7oc2ow3kw3sw3", "--lane=ic --register=ic:4 --order=iw,ic --pieces=1 --threads=2",
    ),
    "bf16": ("--dt=bf16 --stag=axb --dtag=axb mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --register=oc:4,ow:2 --k_step=ic:2"),
    "bf16-f32": ("--dt=bf16:bf16:f32 mb1ic4ih3iw3oc5oh2ow2kh2kw2", "--lane=oc --register=oc:4,ow:2 --k_step=ic:2"),
    "f16": ("--dt=f16 mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --register=oc:4,ow:2"),
    "f16-sums": (
        "--dir=FWD_B --dt=f16 --attr-acc-mode=f16 --attr-post-ops=relu --stag=axb --dtag=axb mb1ic3iw5oc9ow5kw3pw1",
        "--lane=oc --register=oc:16,ow:2",
    ),
    "f16-sums-along-input": (
        "--dt=f16:f16:f32 --attr-acc-mode=any mb1ic11ih3iw4oc2oh3ow4kh3kw1ph1", "--lane=ic --register=oc:2,ow:3",
    ),
    "f16-sums-backward": (
        "--dir=BWD_D --dt=f16 --attr-acc-mode=f16 mb1ic9iw7oc3ow4kw3sw2pw1",
        "--lane=ic --register=ic:8",
    ),
    "f16-sums-weights": (
        "--dir=BWD_W --dt=f16 --attr-acc-mode=f16 --dtag=axb mb2ic3iw5oc9ow5kw3pw1",
        "--lane=oc --register=oc:8 --pack=",
    ),
    "f64": ("--dir=FWD_B --dt=f64 --attr-post-ops=relu mb1ic3iw5oc5ow5kw3pw1", "--lane=oc --register=oc:4,ow:2"),
    "shared-gathers": (
        "--stag=axb --dtag=axb g3mb1ic6iw5oc6ow5kw3pw1", "--lane=g_oc --fuse=g+oc --register=g_oc:4,ow:2 --k_step=ic:2",
    ),
    "quantised": (
        "--dir=FWD_B --dt=u8:s8:s8 --attr-scales=src:common:0.5+wei:per_oc+dst:common:2 "
        "--attr-zero-points=src:common:3+dst:common:1 mb1ic3iw5oc5ow5kw3pw1",
        "--lane=oc --register=oc:4,ow:2",
    ),
    "zero-points-of-weights": (
        "--dt=s8:s8:f32 --attr-zero-points=src:per_dim_1+wei:common:2 mb1ic3iw5oc5ow5kw3pw1",
        "--lane=oc --register=oc:4",
    ),
    "zero-points-off-the-sums": (
        "--dt=u8:s8:u8 --stag=axb --dtag=axb --attr-zero-points=src:common:3+wei:per_oc+dst:common:1 "
        "mb2ic5ih3iw4oc5oh3ow4kh3kw3ph1pw1",
        "--lane=oc --register=oc:4,ow:3 --k_step=ic:4 --offsets=sums --threads=2",
    ),
    "zero-points-of-a-copy": (
        "--dt=u8:s8:s32 --attr-zero-points=src:common:-300 mb2ic5ih5iw4oc5oh3ow2kh3kw3sh2sw2ph1pw1",
        "--lane=oc --register=oc:4,ow:2 --k_step=ic:4 --realise=pad_copy --offsets=sums",
    ),
    "zero-points-of-groups": (
        "--dt=s8:s8:f32 --attr-zero-points=src:common:3+wei:per_dim_0 g2mb1ic6iw4oc6ow4kw3pw1",
        "--lane=g_oc --fuse=g+oc --register=g_oc:3 --k_step=ic:2 --offsets=sums",
    ),
    "zero-points-of-both-borders": (
        "--dt=u8:s8:s32 --attr-zero-points=src:common:3+wei:common:2 mb1ic3iw3oc5ow7kw5pw4",
        "--lane=oc --register=oc:4,ow:2 --k_step=ic:4 --realise=mask --offsets=sums",
    ),
    "zero-points-where-a-stride-meets": (
        "--deconv --dt=u8:s8:s32 --attr-zero-points=src:common:3+wei:common:2 mb1ic5iw5oc5ow9kw3sw2pw1",
        "--lane=oc --register=oc:4,ow:2 --k_step=ic:4 --offsets=sums",
    ),
    "zero-points-of-a-product": (
        "--matmul --dt=u8:s8:s32 --attr-zero-points=src:common:3+wei:per_oc 2x3x7:1x7x5",
        "--lane=n --register=n:4,m:2 --k_step=k:4 --offsets=sums",
    ),
    "zero-points-of-rows": (
        "--matmul --dt=u8:s8:s32 --attr-zero-points=src:per_dim_0+wei:per_oc 5x7:7x6",
        "--lane=n --register=n:4,m:2 --k_step=k:4 --offsets=sums --pack=src,wei",
    ),
    "zero-points-of-a-packed-source": (
        "--dt=s8:s8:s32 --stag=axb --dtag=axb --attr-zero-points=src:common:3+wei:per_oc mb2ic5ih2iw4oc6oh2ow4kh1kw1",
        "--lane=oc --register=oc:4,ow:3 --k_step=ic:4 --offsets=sums --flip=src --pack=src,wei --threads=2",
    ),
    "zero-points-of-a-packed-window": (
        "--dt=u8:s8:s32 --attr-zero-points=src:common:3+wei:common:2 mb1ic3iw5oc5ow3kw3",
        "--lane=oc --register=oc:4,ow:2 --k_step=ic:4 --offsets=sums --pack=src,wei",
    ),
    "packed-source-with-padding": (
        "--stag=axb --dtag=axb mb2ic3ih3iw4oc5oh3ow4kh3kw3ph1pw1",
        "--lane=oc --register=oc:4,ow:3 --pack=src,wei --threads=2",
    ),
    "packed-source-where-a-stride-meets": (
        "--deconv mb1ic5iw5oc5ow9kw3sw2pw1", "--lane=oc --register=oc:4,ow:2 --realise=mask --pack=src,wei",
    ),
    "fewer-bits": (
        "--matmul --bits=7:5 --dt=u8:s8:s32 --attr-zero-points=src:per_dim_0+wei:common:2 5x7:7x6",
        "--lane=n --register=n:4,m:2 --k_step=k:4 --offsets=sums --pack=src,wei",
    ),
    "fewer-bits-of-the-source": (
        "--matmul --bits=3:8 --rounding=probabilistic --dt=s8:u8:u8 --attr-post-ops=s32_rshift:common:7 2x5x7:1x7x6",
        "--lane=n --register=n:4,m:2 --k_step=k:4 --offsets=sums --flip=wei --pack=src,wei",
    ),
    "fewer-bits-of-weights": (
        "--matmul --bits=8:1 --rounding=probabilistic --dt=s8:u8:s32 --attr-zero-points=wei:per_oc 5x7:7x6",
        "--lane=m --register=m:4,n:2 --offsets=sums --flip=src --pack=wei",
    ),
    "zero-points-off-the-sums-one-term": (
        "--dt=s8:u8:f32 --attr-zero-points=src:common:3+wei:common:2 mb1ic3iw5oc5ow5kw3pw1",
        "--lane=ow --register=ow:4,oc:2 --realise=mask --offsets=sums --flip=src,wei",
    ),
    "flipped-weights": (
        "--matmul --dt=u8:u8:s32 --wtag=ba 3x7:7x1", "--lane=n --register=m:2 --k_step=k:4 --offsets=sums --flip=wei",
    ),
    "flipped-source": (
        "--dt=s8:s8:s32 --stag=axb mb1ic5ih3iw4oc5oh3ow4kh3kw3ph1pw1",
        "--lane=oc --register=oc:4,ow:3 --k_step=ic:4 --offsets=sums --flip=src",
    ),
    "flipped-in-a-copy": (
        "--dt=s8:u8:s32 --stag=axb mb1ic3ih3iw5oc5oh3ow5kh2kw3ph1pw1",
        "--lane=oc --fuse=kw+ic --register=oc:4,ow:2 --k_step=kw_ic:4 --realise=pad_copy --offsets=sums --flip=src,wei",
    ),
    "flipped-along-pixels": (
        "--dt=s8:s8:s32 mb1ic3iw5oc5ow5kw3pw1",
        "--lane=ow --register=ow:4,oc:2 --realise=mask --offsets=sums --flip=src",
    ),
    "flipped-along-channels": (
        "--dt=s8:u8:s32 --stag=axb mb1ic6iw5oc2ow5kw3pw1",
        "--lane=ic --register=oc:2,ow:3 --offsets=sums --flip=src,wei",
    ),
    "post-ops": (
        "--dtag=axb --attr-post-ops=sum:0.5+prelu:per_oc+add:f32:per_tensor+linear:2:1+mul:f32:per_oc+max:s8:common "
        "mb2ic3iw5oc5ow5kw3pw1",
        "--lane=oc --register=oc:4,ow:2 --threads=2",
    ),
    "sum-of-bytes": (
        "--dt=u8:s8:u8 --attr-post-ops=sum:2:1:s8+relu mb1ic4iw5oc5ow5kw1", "--lane=oc --register=oc:4 --k_step=ic:4",
    ),
    "window": (
        "--stag=axb --dtag=axb g6mb1ic6ih4iw5oc6oh4ow5kh3kw3ph1pw1",
        "--lane=g --register=g:4,oh:2,ow:2,kh:3,kw:3 --order=mb,oh,ow,g",
    ),
    "window-strided": (
        "--dt=u8:s8:s32 g5mb1ic5ih5iw7oc5oh3ow4kh3kw3sh2sw2ph1pw1", "--lane=g --register=g:4,oh:2,ow:3,kh:3,kw:3",
    ),
    "weights-held": (
        "--stag=axb --dtag=axb g6mb2ic6ih4iw5oc6oh4ow5kh3kw3ph1pw1",
        "--lane=g --register=g:4,oh:2,ow:2,kh:3,kw:3 --order=mb,g,oh,ow --resident=wei --threads=2",
    ),
    "weights-held-of-two-vectors": (
        "--stag=axb --dtag=axb g14mb1ic14ih5iw5oc14oh3ow3kh3kw3sh2sw2ph1pw1",
        "--lane=g --register=g:8,oh:2,ow:2,kh:3,kw:3 --order=mb,g,oh,ow --resident=wei",
    ),
    "weights-held-of-one-vector": (
        "--stag=axb --dtag=axb g3mb2ic3iw7oc3ow7kw3pw1",
        "--lane=g --register=g:4,ow:3,kw:3 --order=mb,g,ow --resident=wei",
    ),
    "weights-held-drained": (
        "--stag=axb --dtag=axb --attr-post-ops=square+linear:2:1 g6mb2ic6ih4iw5oc6oh4ow5kh3kw3ph1pw1",
        "--lane=g --register=g:4,oh:2,ow:2,kh:3,kw:3 --order=mb,g,oh,ow --resident=wei --spill_sums=yes --threads=2",
    ),
    "weights-held-drained-of-a-deconvolution": (
        "--deconv --stag=axb --dtag=axb --attr-post-ops=square g5mb1ic5iw7oc5ow7kw3pw1",
        "--lane=g --register=g:8,ow:3,kw:3 --order=mb,g,ow --resident=wei --spill_sums=yes",
    ),
    "weights-held-not-packed": (
        "--wtag=bcda --stag=axb --dtag=axb g8mb1ic8iw7oc8ow7kw3pw1",
        "--lane=g --register=g:4,ow:3,kw:3 --order=mb,g,ow --resident=wei --pack=",
    ),
    "winograd": (
        "--stag=axb --dtag=axb mb2ic3ih5iw6oc5oh5ow6kh3kw3ph1pw1",
        "--lane=oc --register=oc:4,tw:2 --pack=wei_w --winograd=oh:2,ow:2 --block=oh:2",
    ),
    "winograd-of-several-images": (
        "mb3ic2iw5oc5ow5kw3pw1",
        "--lane=oc --fuse=tmb+tw --register=oc:4,tmb_tw:4 --pack=wei_w --winograd=ow:2 --block=mb:2",
    ),
    "winograd-along-one-axis": (
        "--dir=FWD_B --attr-post-ops=relu+add:f32:per_oc --stag=axb --dtag=aBx4b mb1ic5ih5iw6oc6oh3ow4kh2kw3sh2ph1dh1",
        "--lane=oc --register=oc:8,th_tw:3 --fuse=th+tw --pack=wei_w --winograd=ow:2 --threads=2",
    ),
    "winograd-by-data": (
        "--dir=BWD_D mb1ic5iw7oc3ow6kw4pw1", "--lane=ic --register=ic:4,tw:2 --pack= --winograd=iw:1 --block=iw:3",
    ),
    "winograd-deconvolution": (
        "--deconv --dtag=axb mb1ic3ih3iw4oc6oh4ow4kh2kw3ph0pw1",
        "--lane=oc --register=oc:4,tw:2 --pack=wei_w --winograd=oh:3,ow:2 --outline=no",
    ),
    "winograd-3d": (
        "mb1ic2id3ih3iw2oc3od2oh3ow2kd2kh1kw1", "--lane=oc --register=oc:4,th:2 --pack=wei_w --winograd=od:2,oh:2",
    ),
    "comparison": ("--attr-post-ops=abs+round+ge:f32:per_oc mb1ic3iw5oc5ow5kw1", "--lane=ow --register=ow:4,oc:2"),
    **FRAGMENTS,
}  # fmt: skip
