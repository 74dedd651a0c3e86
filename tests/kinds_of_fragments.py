"""Tiny problems of the kinds whose instructions multiply matrices, with their configs, as in `kinds_of_kernels`."""

from __future__ import annotations

FRAGMENTS = {
    "fragments-of-a-gradient": (
        "--dir=BWD_W --dt=bf16 --stag=axb --dtag=axb mb1ic6ih4iw5oc5oh4ow5kh3kw3ph1pw1",
        "--lane=ic --register=oc:5,ic:8 --reduce=mb,oh,ow --instruction=fragment_bf16 --k_step=ow:4"
        " --pack=src,diff_dst --realise=pad_copy",
    ),
    "fragments-of-an-unfolded-gradient": (
        "--dir=BWD_W --dt=bf16 mb2ic5ih5iw5oc6oh3ow3kh3kw3sh2sw2ph1pw1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --register=ic:5,oc:8 --reduce=mb_oh_ow --instruction=fragment_bf16"
        " --k_step=mb_oh_ow:4 --pack=src,diff_dst --unfold=src,diff_dst",
    ),
    "fragments-of-a-gradient-in-blocks": (
        "--dir=BWD_W --dt=bf16 --stag=axb --dtag=axb mb2ic6ih3iw5oc5oh3ow5kh1kw1",
        "--lane=ic --fuse=mb+oh,mb_oh+ow --register=oc:5,ic:8 --reduce=mb_oh_ow --instruction=fragment_bf16"
        " --k_step=mb_oh_ow:4 --cache=mb_oh_ow:8 --pack= --pack_at=src+mb_oh_ow,diff_dst+mb_oh_ow",
    ),
    "fragments-of-a-gradient-in-blocks-of-rows": (
        "--dir=BWD_W --dt=bf16 mb1ic6ih4iw5oc5oh4ow5kh3kw3ph1pw1",
        "--lane=oc --register=ic:5,oc:8 --reduce=mb,oh,ow --instruction=fragment_bf16 --k_step=ow:4"
        " --pack=src,diff_dst --realise=pad_copy --cache=oh:2",
    ),
    "fragments-of-a-gradient-in-blocks-of-rows-packed-near": (
        "--dir=BWD_W --dt=bf16 --stag=axb --dtag=axb mb2ic6ih4iw5oc5oh4ow5kh3kw3ph1pw1",
        "--lane=ic --register=oc:5,ic:8 --reduce=mb,oh,ow --instruction=fragment_bf16 --k_step=ow:4"
        " --realise=pad_copy --cache=oh:2 --pack= --pack_at=src+oh,diff_dst+oh",
    ),
    "fragments": (
        "--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic16ih4oc10oh4kh1",
        "--lane=oc --fuse=oh+ow --register=oc:8,oh_ow:6 --k_step=ic:8",
    ),
    "fragments-of-pixels": (
        "--dt=bf16 --stag=abx --dtag=abx mb2ic4ih3oc10oh3kh1",
        "--lane=oh_ow --fuse=oh+ow --register=oc:6,oh_ow:4 --order=mb,oh_ow,oc --instruction=fragment_bf16 "
        "--k_step=ic:4 --pack=src,wei",
    ),
    "fragments-of-pixels-two-apart": (
        "--dt=bf16 --stag=abx --dtag=abx --attr-post-ops=sum+relu mb1ic5ih5iw9oc7oh3ow5kh1kw1sh2sw2ph0pw0",
        "--lane=ow --register=oc:6,ow:4 --order=mb,oh,ow,oc --instruction=fragment_bf16 --k_step=ic:4 --pack=src,wei",
    ),
    "fragments-of-pixels-of-bytes": (
        "--dt=s8:u8:s8 --stag=abx --dtag=abx mb1ic9ih4oc7oh4kh1",
        "--lane=oh_ow --fuse=oh+ow --register=oc:3,oh_ow:8 --order=mb,oh_ow,oc --instruction=fragment_u8 --k_step=ic:8"
        " --pack=src,wei",
    ),
    "fragments-of-one-column": (
        "--dt=u8:s8:u8 --stag=axb --dtag=axb --attr-zero-points=src:common:3 mb1ic8iw5oc1ow5kw1",
        "--lane=oc --register=oc:4,ow:2 --k_step=ic:8 --offsets=sums",
    ),
    "fragments-with-rests-transposed": (
        "--dt=bf16 --stag=abx --dtag=abx mb1ic4iw11oc7ow11kw1",
        "--lane=oc --register=oc:8,ow:6 --k_step=ic:4 --realise=pad_copy",
    ),
    "fragments-with-rests": (
        "--dt=u8:s8:f32 --stag=axb mb1ic8iw13oc5ow13kw1", "--lane=oc --register=oc:4,ow:5 --k_step=ic:8",
    ),
    "fragments-padded": (
        "--dt=u8:s8:s8 --stag=axb --dtag=axb --attr-post-ops=relu:0.5 mb2ic8ih3iw5oc5oh3ow5kh3kw3ph1pw1",
        "--lane=oc --register=oc:8,ow:5 --reduce=kh,kw,ic --k_step=ic:8 --realise=pad_copy",
    ),
    "fragments-apart": (
        "--dt=bf16 mb1ic4ih5iw7oc5oh3ow4kh3kw3sh2sw2ph1pw1",
        "--lane=oc --register=oc:4,ow:4 --reduce=kh,kw,ic --k_step=ic:4 --realise=pad_copy --threads=2",
    ),
    "fragments-groups": (
        "--dt=bf16:bf16:f32 --stag=axb g2mb1ic8iw6oc6ow6kw1", "--lane=oc --register=oc:4,ow:6 --k_step=ic:4",
    ),
    "fragments-blocked": (
        "--dt=bf16 --stag=aBc4b --dtag=aBc4b mb1ic8iw7oc6ow7kw1", "--lane=oc --register=oc:8,ow:7 --k_step=ic:4",
    ),
    "fragments-backward": (
        "--dir=BWD_D --dt=bf16 --dtag=axb mb1ic5iw6oc8ow6kw3pw1",
        "--lane=ic --register=ic:8,iw:6 --k_step=oc:4 --realise=pad_copy",
    ),
    "fragments-product": ("--matmul --dt=u8:s8:s32 7x16:16x9", "--lane=n --register=n:12,m:3 --k_step=k:8 --threads=2"),
    "fragments-one-function": (
        "--matmul --dt=bf16:bf16:f32 3x7x4:3x4x5", "--lane=n --register=n:4,m:6 --k_step=k:4 --outline=no",
    ),
    "windows-of-rows": (
        "--dt=bf16 --stag=axb --dtag=axb mb2ic3ih5iw5oc3oh3ow3kh2kw3sh2sw2ph1pw1",
        "--lane=oc --fuse=kw+ic --register=oc:4,ow:2 --order=mb,oh,ow,oc --reduce=kh,kw_ic --k_step=kw_ic:4 "
        "--cache=oh:2 --realise=window_copy",
    ),
    "windows-of-rows-on-threads": (
        "--dt=bf16 --stag=axb --dtag=axb mb1ic3ih5iw5oc3oh3ow3kh2kw3sh2sw2ph1pw1",
        "--lane=oc --fuse=kw+ic --register=oc:4,ow:2 --order=mb,oh,ow,oc --reduce=kh,kw_ic --k_step=kw_ic:4 "
        "--realise=window_copy --threads=2",
    ),
    "windows-of-rows-as-one": (
        "--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic3ih3iw3oc5oh3ow2kh3kw2ph1pw0",
        "--lane=oc --fuse=oh+ow,kh+kw,kh_kw+ic --register=oc:8,oh_ow:4 --reduce=kh_kw_ic --k_step=kh_kw_ic:8 "
        "--realise=window_copy",
    ),
    "windows-of-channels-apart": (
        "--dt=bf16 --stag=abx --dtag=abx mb1ic3ih5iw5oc6oh3ow3kh2kw3sh2sw2ph1pw1",
        "--lane=oc --fuse=kw+ic --register=oc:8,ow:2 --order=mb,oh,ow,oc --reduce=kh,kw_ic --k_step=kw_ic:4 "
        "--cache=oh:2 --realise=window_copy",
    ),
    "windows-with-a-zero-point": (
        "--dt=u8:s8:u8 --stag=axb --dtag=axb --attr-zero-points=src:common:3 mb1ic3ih5iw5oc3oh3ow3kh2kw3sh2sw2ph1pw1",
        "--lane=oc --fuse=kw+ic --register=oc:4,ow:2 --order=mb,oh,ow,oc --reduce=kh,kw_ic --k_step=kw_ic:8 "
        "--cache=oh:2 --realise=window_copy --offsets=sums",
    ),
    "windows-of-groups": (
        "--dt=u8:s8:s32 --stag=axb --dtag=axb g2mb1ic6iw6oc6ow6kw3pw1",
        "--lane=oc --fuse=kw+ic --register=oc:4,ow:6 --order=mb,g,ow,oc --reduce=kw_ic --k_step=kw_ic:8 "
        "--realise=window_copy",
    ),
    "windows-of-vectors": (
        "--dt=bf16:bf16:f32 --stag=axb mb1ic3ih4iw7oc5oh4ow7kh3kw3ph1pw1",
        "--lane=oc --fuse=kw+ic --register=oc:4,ow:2 --order=mb,oh,ow,oc --reduce=kh,kw_ic --k_step=kw_ic:2 "
        "--realise=window_copy",
    ),
}  # fmt: skip
