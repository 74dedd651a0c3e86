from __future__ import annotations

import copyreg
import pickle

import pytest

from convsmith.diag import errors


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (errors.UsageError("ic=3"), "usage", "ic=3"),
        (errors.UsageError("ic=3", code="bad-dim"), "bad-dim", "ic=3"),
        (errors.ConfigError("registers", "needs 33, target has 32"), "registers", "needs 33, target has 32"),
        (errors.UnsupportedError("amx"), "unsupported", "amx"),
        (errors.ToolchainError("LLVM refused", text="define void"), "toolchain", "LLVM refused"),
        (errors.InternalError("lost a loop"), "internal", "lost a loop"),
    ],
)
def test_code_and_text_survive_pickling(error: errors.ConvsmithError, code: str, text: str) -> None:
    for e in (error, pickle.loads(pickle.dumps(error))):
        assert type(e) is type(error)
        assert isinstance(e, errors.ConvsmithError)
        assert (e.code, str(e)) == (code, text)
        located = e.located("net.onnx: node a")
        assert type(located) is type(error) and (located.code, str(located)) == (code, f"net.onnx: node a: {text}")
        assert str(pickle.loads(pickle.dumps(located))) == str(located) and str(e) == text


def test_a_located_error_leaves_the_original_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that pickle tracebacks, which clusters import, register a reduction whose copies share their dict."""
    error = errors.UnsupportedError("amx")
    monkeypatch.setitem(copyreg.dispatch_table, errors.UnsupportedError, lambda e: (_shared, (e,)))
    assert (str(error.located("net.onnx: node a")), str(error)) == ("net.onnx: node a: amx", "amx")


def _shared(error: errors.UnsupportedError) -> errors.UnsupportedError:
    made = errors.UnsupportedError.__new__(errors.UnsupportedError)
    made.__dict__ = error.__dict__
    return made


def test_internal_error_ends_in_the_command_that_shows_it_again() -> None:
    error = errors.InternalError("lost a loop", repro="convsmith verify 'mb1ic4'")
    assert str(pickle.loads(pickle.dumps(error))).endswith("convsmith verify 'mb1ic4'")


def test_toolchain_error_keeps_the_text() -> None:
    assert pickle.loads(pickle.dumps(errors.ToolchainError("refused", text="define"))).text == "define"
