"""Operators of ONNX that no network takes: the reason, and what serves in their place."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REFUSALS"]

_OUTSIDE = "end the model before the node, and compute it from the network's output"
_BEFORE = "compute it before the network, and make its result an input"


def _rows(operators: str, reason: str) -> Mapping[str, str]:
    return dict.fromkeys(operators.split(), reason)


REFUSALS: Mapping[str, str] = {
    **_rows(
        "NonZero NonMaxSuppression Unique Compress",
        f"the size of its output depends on the values of a run, and sizes of a network are fixed; {_OUTSIDE}",
    ),
    **_rows(
        "Range ConstantOfShape",
        "the size of its output depends on the values of a run, and sizes of a network are fixed; available are inputs "
        "that are constants, or sizes of values",
    ),
    **_rows(
        "MelWeightMatrix",
        "values of a run decide it; available are constants: its bands end at whole bins, as ONNX rounds numbers in "
        "f64 that kernels compute in f32",
    ),
    **_rows(
        "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial",
        f"it draws random numbers; {_BEFORE}",
    ),
    **_rows("If", "its condition is a value of a run; available are constants, and conditions on sizes"),
    **_rows("Loop Scan", "it repeats nodes as often as values of a run say; unroll it before the export of the model"),
    **_rows(
        "SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap "
        "ConcatFromSequence SplitToSequence Optional OptionalGetElement OptionalHasElement",
        "it has a sequence or an optional value; available are arrays, with Split and Concat in place of sequences",
    ),
    **_rows(
        "StringConcat StringNormalizer StringSplit RegexFullMatch TfIdfVectorizer ImageDecoder LabelEncoder",
        f"it reads texts or files; {_BEFORE}",
    ),
    **_rows("Adam Adagrad Momentum Gradient", "it is a step of training; available is inference"),
    **_rows("TreeEnsemble", f"it decides by trees; {_OUTSIDE}"),
}
"""By ONNX's name, the reason of the refusal."""
