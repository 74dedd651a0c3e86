"""Files that are written: a new one takes the place of the old one once it is whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from convsmith.diag.files import whole_file


def _written(path: Path, content: bytes) -> None:
    with whole_file(path) as file:
        file.write(content)


def test_a_reader_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    _written(path, b"old")
    with open(path, "rb") as reader:
        _written(path, b"new")
        assert reader.read() == b"old" and path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="full"), whole_file(path) as file:
        file.write(b"half")
        raise OSError(28, "full")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_links_and_modes_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    _written(link, b"new")
    assert link.is_symlink() and path.read_bytes() == b"new" and stat.S_IMODE(path.stat().st_mode) == 0o640
    _written(tmp_path / "plain", b"")
    (tmp_path / "usual").write_bytes(b"")
    assert (tmp_path / "plain").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_devices_are_written_in_place() -> None:
    _written(Path(os.devnull), b"anything")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "no" / "file", "No such file")):
        with pytest.raises(OSError, match=why):
            _written(path, b"")
