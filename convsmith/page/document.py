"""Pages from templates, and their files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.files import whole_file
from convsmith.diag.printable import LINES, printable

__all__ = ["check_page", "render", "write_page"]

_PACKAGES = ("jinja2", "matplotlib")


def check_page(file: str | Path) -> None:
    """Raise UsageError if the directory of `file` does not exist, UnsupportedError if a package is not installed."""
    if not Path(file).absolute().parent.is_dir():
        raise UsageError(f"html={file}: there is no such directory", code="bad-file")
    for package in _PACKAGES:
        try:
            __import__(package)
        except ImportError:
            raise UnsupportedError(
                f"html={file} needs {package}: pip install 'convsmith[page]' brings it", code=package
            ) from None


@cache
def _environment() -> Any:
    from jinja2 import DictLoader, Environment

    texts = {
        x.name: x.read_text(encoding="utf-8")
        for x in (files("convsmith.page") / "templates").iterdir()
        if x.name.endswith((".html", ".css", ".js"))
    }
    return Environment(
        loader=DictLoader(texts), autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_without_controls
    )


def _without_controls(value: Any) -> Any:
    """Return the text of a page without control characters for browsers or terminals; markup is unchanged."""
    return printable(value, LINES) if type(value) is str else value


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return the page of `template` filled with `values`, whose texts are escaped."""
    text: str = _environment().get_template(template).render(**values)
    return text


def write_page(file: str | Path, text: str) -> None:
    """Write the page `text` to `file`. UsageError if that fails."""
    try:
        with whole_file(file) as page:
            page.write(text.encode())
    except OSError as error:
        raise UsageError(f"html={file}: cannot be written: {error.strerror}", code="bad-file") from None
