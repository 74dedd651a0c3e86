"""The file form of artifacts: exact round trip, and every damage is noticed."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from convsmith.codegen.artifact import (
    ABI_VERSION,
    FINITE,
    Argument,
    Artifact,
    Entry,
    Launch,
    host_launch,
    size_argument,
)
from convsmith.diag.errors import UsageError


def make(**changes: object) -> Artifact:
    src = Argument("src", "in", "f32", (1, 3, 8, 8), "axb", 192, ("mb", "ic", "ih", "iw"))
    packed = Argument("wei_p", "packed", "f32", (16, 3, 1, 1), "0:16:1 1:3:16", 48, of="wei")
    scales = Argument("scales_dst", "in", "f32", (1,), "a", 1, default=(1.0,))
    dst = Argument("dst", "out", "f32", (1, 16, 8, 8), "axb", 1024)
    wei = Argument("wei", "in", "f32", (16, 3, 1, 1), "abx", 48)
    entries = {
        "main": Entry("k_main", (src, packed, scales, dst, size_argument("ih")), host_launch(2)),
        "bias": Entry("k_bias", (dataclasses.replace(dst, role="inout"),)),
        "pack": Entry("k_pack", (wei, packed), packing="abc"),
        "again": Entry("k_again", (dst,)),
    }
    artifact = Artifact(
        b"\x7fELF" + bytes(range(256)), "avx2", entries, "mb1ic3ih8oc16oh8kh1", "--target avx2",
        limits={"wei": FINITE, "src": 64.0}, notes={"ä": "abc", "ü": "unicode"},
    )  # fmt: skip
    return dataclasses.replace(artifact, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [b"", b"\0", bytes(100_000)])
def test_round_trip(code: bytes) -> None:
    artifact = make(code=code)
    again = Artifact.from_bytes(artifact.to_bytes())
    assert again == artifact
    assert again.to_bytes() == artifact.to_bytes()
    assert list(again.entries) == ["main", "bias", "pack", "again"]
    assert list(again.steps) == ["main", "bias", "again"] and again.packs == {"wei": ("pack",)}
    assert again.entries["main"].arguments[0].shape == (1, 3, 8, 8)
    assert again.entries["main"].chunk_symbol == "k_main_chunk"


def test_launch_data_survives_the_file() -> None:
    """The start of entries, places of arguments, values of sizes, permissions: also of code for other machines."""
    src = dataclasses.replace(make().entries["main"].arguments[0], memory="device")
    size = dataclasses.replace(size_argument("ih"), value=-(1 << 40))
    grid = Launch("grid", runtime="device", grid=(7, 5, 1), group=(64, 2, 1), shared=4096)
    entries = {
        "main": Entry("k", (src, size), grid),
        "bias": Entry("b", (dataclasses.replace(src, memory="constant"),), Launch("tasks", 3, "pool")),
        "sums": Entry("s", (), Launch()),
    }
    artifact = make(entries=entries, permissions=("amx", "later"))
    again = Artifact.from_bytes(artifact.to_bytes())
    assert again == artifact and again.permissions == ("amx", "later")
    assert [e.launch for e in again.entries.values()] == [grid, Launch("tasks", 3, "pool"), Launch()]
    assert again.entries["main"].arguments[1].value == -(1 << 40)


def test_every_flipped_byte_is_noticed() -> None:
    data = make().to_bytes()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x40
        with pytest.raises(UsageError) as caught:
            Artifact.from_bytes(bytes(damaged))
        assert caught.value.code == "bad-artifact"


@pytest.mark.parametrize("cut", [0, 1, 11, 12, 16, 40, -1, -33])
def test_truncation_is_noticed(cut: int) -> None:
    with pytest.raises(UsageError):
        Artifact.from_bytes(make().to_bytes()[:cut])


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a JSON value, with each of its keys."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def with_manifest(manifest: object) -> bytes:
    """The file form, checksum included, of an artifact with this manifest."""
    header = json.dumps(manifest).encode()
    body = b"convsmith\x00\x01\x00" + len(header).to_bytes(4, "little") + header + make().code
    return body + hashlib.sha256(body).digest()


def manifest_of(artifact: Artifact) -> Any:
    data = artifact.to_bytes()
    return json.loads(data[16 : 16 + int.from_bytes(data[12:16], "little")])


def test_a_header_leaves_out_what_has_its_default() -> None:
    (name, entry), *_ = manifest_of(make())["entries"]
    first = make().entries[name].arguments[0]
    defaults = {f.name: f.default for f in dataclasses.fields(first) if f.default is not dataclasses.MISSING}
    changed = {field for field, value in defaults.items() if getattr(first, field) != value}
    assert entry["arguments"][0].keys() == {f.name for f in dataclasses.fields(first)} - defaults.keys() | changed


WRONG = (None, 1, -1, 1.5, True, "", "text", [], {}, [1], ["a"], [["a", {}]], {"a": 1}, 1 << 70)


def test_every_manifest_is_read_as_it_is_declared_or_refused() -> None:
    """Whatever stands in any place of a manifest, with a valid checksum around it."""
    refused = 0
    whole = manifest_of(make())
    for n in range(len(list(places(whole)))):
        for wrong in (*WRONG, "absent", "more"):
            manifest = copy.deepcopy(whole)
            container, key = list(places(manifest))[n]
            if wrong == "absent":
                del container[key]
            elif wrong == "more" and isinstance(container, dict):
                container["another"] = 1
            else:
                container[key] = wrong
            try:
                again = Artifact.from_bytes(with_manifest(manifest))
            except UsageError as error:
                assert error.code == "bad-artifact"
                refused += 1
                continue
            assert again.steps and isinstance(again.packs, dict)
            for entry in again.entries.values():
                assert type(entry.symbol) is str and entry.launch.kind in ("call", "tasks", "grid")
                assert type(entry.launch.threads) is int and 1 <= entry.launch.threads <= 1024
                for argument in entry.arguments:
                    assert type(argument.size) is int and argument.size >= 0 and type(argument.layout) is str
                    assert all(type(size) is int and size >= 0 for size in argument.shape)
                    assert all(type(dim) is str for dim in argument.dims)
                    assert argument.memory in ("host", "device", "constant")
                    assert argument.value is None or type(argument.value) is int
                    assert argument.default is None or all(type(x) in (int, float) for x in argument.default)
            assert Artifact.from_bytes(again.to_bytes()) == again
    assert refused > 1000


@pytest.mark.parametrize(
    "header", [b"", b"{", b"null", b"[]", b"3", b'"x"', b"{}", b"\xff", b"[" * 100_000, b'{"abi": [1]}']
)
def test_headers_that_are_no_manifest(header: bytes) -> None:
    body = b"convsmith\x00\x01\x00" + len(header).to_bytes(4, "little") + header
    for data in (body, body[:14], body + b"code"):
        with pytest.raises(UsageError) as caught:
            Artifact.from_bytes(data + hashlib.sha256(data).digest())
        assert caught.value.code == "bad-artifact"


def test_other_abi_is_refused() -> None:
    with pytest.raises(UsageError, match=f"ABI version 999; this convsmith runs {ABI_VERSION}"):
        Artifact.from_bytes(make(abi=999).to_bytes())


def test_several_packed_tensors_have_an_entry_each() -> None:
    main = make().entries["main"]
    entries = {"main": main}
    for name, of in (("src_p", "src"), ("wei_sums", "wei"), ("wei_p", "wei")):
        packed = Argument(name, "packed", "f32", (3,), "a", 3, of=of)
        given = Argument(of, "in", "f32", (3,), "a", 3)
        entries[f"pack:{name}"] = Entry(f"k_{name}", (given, packed), packing=name)
    artifact = make(entries=entries)
    assert artifact.packs == {"src": ("pack:src_p",), "wei": ("pack:wei_sums", "pack:wei_p")}
    assert list(artifact.steps) == ["main"]


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="role 'bias' is not one of in, out, inout, packed, scratch"):
        Argument("b", "bias", "f32", (4,), "a", 4)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="argument b: of='' with role packed"):
        Argument("b", "packed", "f32", (4,), "a", 4)
    with pytest.raises(UsageError, match="argument b: of='wei' with role in"):
        Argument("b", "in", "f32", (4,), "a", 4, of="wei")
    with pytest.raises(UsageError, match="argument b: 2 names for the 1 dims"):
        Argument("b", "in", "f32", (4,), "a", 4, ("oc", "ic"))
