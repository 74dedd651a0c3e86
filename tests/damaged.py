"""Contents that a reader of JSON must survive: what a crash, another version or another person may leave."""

from __future__ import annotations

JSON = (
    b"", b"\x00\xff\xfe", b"[", b"null", b"1", b'"text"', b"{}", b"[]", b"[1]", b"[1, 2]", b"[null, null, null]",
    b"[NaN, 1, true]", b"[Infinity, -1, true]", b'[1e400, "2026-01-01", true]', b'["1", "2026-13-45", 1]',
    b"[-1.0, 0, true]", b"[" * 100_000, b"[" + b"9" * 5000 + b", 1, true]", b"[1" + b"0" * 400 + b', 1, "yes"]',
    b"[1, 2, 3, 4]", b'[1, 2, "\\ud800"]',
)  # fmt: skip
