"""The policy table: one row per operator and bracket of operator sets, and the operators that are wide by default.

Data only.  Whether a node *may* be narrow is the schema's answer; whether it *should* be is the row's.  An
operator that stands neither here nor in ``DEFAULT_WIDE`` is unknown, stays FP32 and is named in the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from converter.policy.rows import (
    contributed,
    contributed_products,
    elementwise,
    matrix,
    movement,
    normalisation,
    reading,
    reduction,
)
from converter.types import OpPolicy

TABLE: Final[tuple[OpPolicy, ...]] = (
    matrix.ROWS
    + elementwise.ROWS
    + normalisation.ROWS
    + reduction.ROWS
    + movement.ROWS
    + reading.ROWS
    + contributed_products.ROWS
    + contributed.ROWS
)

_SEQUENCE: Final = "A sequence has one element type, and nothing is cast while it is part of a sequence."
_OPTIONAL: Final = "An optional value has one declared type, and nothing is cast while it is optional."
_RANDOM: Final = "Draws random numbers in its own type, so another type is another stream of numbers."
_WINDOW: Final = "Evaluates cosines at integer positions, which 16-bit formats cannot tell apart in a long window."
_BOXES: Final = "Boxes share the type of the features, and narrowing coordinates moves regions by pixels."
_INTEGER: Final = "Computes in integers with FP32 scales, and a rounded scale moves whole levels."

DEFAULT_WIDE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "AffineGrid": "Makes sampling coordinates, and a rounded coordinate moves a sample by part of a pixel.",
        "Bernoulli": _RANDOM,
        "BlackmanWindow": _WINDOW,
        "ConcatFromSequence": _SEQUENCE,
        "DFT": "Every output sums all samples, and small frequencies are differences of large sums.",
        "Det": "A determinant is a sum of products of rows, which cancel and leave the range.",
        "DynamicQuantizeLinear": "Finds scale and zero point from FP32, the only float type its schema admits.",
        "HammingWindow": _WINDOW,
        "HannWindow": _WINDOW,
        "MaxRoiPool": _BOXES,
        "MelWeightMatrix": "Places filter edges by logarithms of frequencies, where rounding moves a filter by a bin.",
        "Multinomial": _RANDOM,
        "NegativeLogLikelihoodLoss": "Sums a loss over the batch, a training quantity that has to keep small changes.",
        "NonMaxSuppression": "Compares overlaps of boxes with a threshold in FP32, the only type its schema admits.",
        "Optional": _OPTIONAL,
        "OptionalGetElement": _OPTIONAL,
        "OptionalHasElement": _OPTIONAL,
        "QLinearConv": _INTEGER,
        "QLinearMatMul": _INTEGER,
        "RandomNormal": _RANDOM,
        "RandomNormalLike": _RANDOM,
        "RandomUniform": _RANDOM,
        "RandomUniformLike": _RANDOM,
        "RoiAlign": _BOXES,
        "STFT": "Every output sums a frame of samples, and small frequencies are differences of large sums.",
        "SequenceAt": _SEQUENCE,
        "SequenceConstruct": _SEQUENCE,
        "SequenceEmpty": _SEQUENCE,
        "SequenceErase": _SEQUENCE,
        "SequenceInsert": _SEQUENCE,
        "SequenceLength": _SEQUENCE,
        "SoftmaxCrossEntropyLoss": "Holds a Softmax and a logarithm, both of which amplify rounding.",
        "SplitToSequence": _SEQUENCE,
        "TfIdfVectorizer": "Counts n-grams into FP32, the only float type its schema admits.",
    }
)
"""Operators of the standard domain that need no row: nothing beyond "FP32" is to be said about them."""
