"""A wrong name is answered with the name that was probably meant, wherever names are chosen from a list."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import convsmith as cs
from convsmith.cli.main import main
from convsmith.diag.choices import choices, nearest, suggestion
from convsmith.diag.errors import ConfigError, UsageError
from convsmith.machine.micro_architectures import named
from convsmith.problem import parse_problem
from convsmith.problem.reference import reference

ROOT = Path(cs.__file__).parent
LINE = "mb1ic4ih5oc4kh3"
X, W = np.ones((1, 4, 5, 5), np.float32), np.ones((4, 4, 3, 3), np.float32)


def test_the_nearest_name() -> None:
    legal = ("relu", "prelu", "FWD_B", "avx512_vnni", "s8")
    assert [nearest(word, legal) for word in ("rleu", "RELU", "fwd-b", "fwdb", "avx512vnni", "preluu", "S8")] == [
        "relu", "relu", "FWD_B", "FWD_B", "avx512_vnni", "prelu", "s8",
    ]  # fmt: skip
    assert not any(nearest(word, legal) for word in ("", "x", "nothing", 3, None, "relu" * 1000))
    assert choices("rleu", legal[:2]) == "relu, prelu; did you mean 'relu'?"
    assert choices("nothing", legal[:2], ("relu[:slope]", "prelu")) == "relu[:slope], prelu"
    assert suggestion("--rleu", ["--relu"], {"--relu": "relu"}) == "; did you mean 'relu'?"


CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: cs.compile(LINE, target="avx521"), "avx512"),
    (lambda: cs.compile(LINE, config="--target=generic --lnae=oc"), "lane"),
    *((lambda text=text: cs.compile(LINE, config=f"--target=generic --lane=oc --{text}"), meant) for text, meant in (
        ("realise=padcopy", "pad_copy"), ("table=rows", "row"), ("offsets=sum", "sums"), ("copies=asinc", "async"),
        ("barriers=spilt", "split"), ("join=atomics", "atomic"), ("halo=recompte", "recompute"),
    )),
    (lambda: parse_problem(f"--dt=bf61 {LINE}"), "bf16"),
    (lambda: parse_problem(f"--dt=float32 {LINE}"), "f32"),
    (lambda: parse_problem(f"--dt=int8:int8:s32 {LINE}"), "s8"),
    (lambda: parse_problem(f"--dir=BWDD {LINE}"), "BWD_D"),
    (lambda: parse_problem(f"--accuracy=strickt {LINE}"), "strict"),
    (lambda: parse_problem(f"--attr-acc-mode=strickt {LINE}"), "strict"),
    (lambda: parse_problem(f"--attr-post-ops=rleu {LINE}"), "relu"),
    (lambda: parse_problem(f"--attr-post-ops=ad:f32 {LINE}"), "add"),
    (lambda: parse_problem(f"--attr-scales=scr:common:2 {LINE}"), "src"),
    (lambda: parse_problem(f"--attr-scales=src:comon:2 {LINE}"), "common"),
    (lambda: parse_problem(f"--stagg=axb {LINE}"), "stag"),
    (lambda: cs.conv2d(X, W, activation="sliu"), "silu"),
    (lambda: cs.conv2d(X, W, activation="rleu"), "relu"),
    (lambda: cs.compile(LINE, threads=1).run(scr=X, wei=W), "src"),
    (lambda: reference(parse_problem(LINE), {"src": X, "wie": W}), "wei"),
    (lambda: cs.compile(LINE, threads=1).ir("vectorize"), "vectorise"),
    (lambda: cs.settings.scope(thread=2).__enter__(), "threads"),
    (lambda: named("zenver4"), "znver4"),
    (lambda: cs.export(LINE, "unused", target="x86_64-linux-gnu+avx21"), "avx2"),
    (lambda: cs.export(LINE, "unused", format="objects"), "object"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_every_choice_says_what_was_meant(number: int) -> None:
    call, meant = CALLS[number]
    with pytest.raises((UsageError, ConfigError)) as found:
        call()
    assert str(found.value).count("did you mean") == 1 and f"did you mean '{meant}'?" in str(found.value)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["bnech", LINE], "bench"), (["db", "lst"], "list"), (["cache", "claer"], "clear"),
        (["bench", "resnet5"], "resnet50"), (["bench", "mobilenetv2"], "mobilenet_v2"),
        (["bench", "--suite", "clifs"], "cliffs"),
        (["bench", LINE, "--vs", "tourch"], "torch"), (["verify", LINE, "--target", "avx-2"], "avx2"),
        (["bench", LINE, "--relu"], "--attr-post-ops=relu"), (["explain", LINE, "--bf16"], "--dt=bf16"),
        (["tune", LINE, "--treads", "1"], "--threads"), (["verify", LINE, "--BWD_W"], "--dir=BWD_W"),
        (["bench", LINE, "--onednn"], "--vs=onednn"), (["machine", "--mesure"], "--measure"),
        (["--verson"], "--version"),
        (["db", "best", "--wied"], "--wide"), (["show", LINE, "--after", "outlin"], "outline"),
        (["export", LINE, "--format", "sources", "-o", "unused"], "source"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)  # fmt: skip
def test_commands_say_what_was_meant(words: list[str], meant: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and f"did you mean '{meant}'?" in result.output, result.output


def test_a_word_that_is_near_to_nothing_gets_no_question() -> None:
    for words in (["qqq"], ["bench", LINE, "--qqq"], ["bench", LINE, "--vs", "qqq"], ["bench", "qqq"]):
        assert "did you mean" not in CliRunner().invoke(main, words).output


def test_every_list_of_names_has_the_question() -> None:
    """A message about an unknown name lists the legal ones by `choices`, or ends with a `suggestion`."""
    unknown, listed = r"(?:is unknown|unknown \w+ \{|[Nn]o such \w+ \{)", r"\{', '\.join\([^\"]*\)\}"
    wrong = re.compile(rf"f\"[^\"]*{unknown}[^\"]*{listed}[^\"{{]*\"")
    for path in ROOT.rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not wrong.search(line), f"{path}: {line}"
