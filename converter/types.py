"""The frozen records every stage passes on.

Ids are positions in ``graph.ModelIndex``: a node id counts nodes over all scopes in the order in which
they stand, a value id counts values.  This file imports onnx_ir for type checking only, so that the web
process can import it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from converter.program_facts import ProgramFacts

if TYPE_CHECKING:
    import onnx_ir as ir

PROVENANCE = "narrowcast"
"""Prefix of the ``metadata_props`` keys that we write on nodes: ``format`` (decided), ``rule`` (inserted) ..."""

RAISED_OPSET = "raised opset"
"""The ``rule`` of nodes that raising the operator set put in: they are decided on like the user's own."""

STAGES = ("load", "observe", "decide", "rewrite", "compare", "judge", "build")


# ---------------------------------------------------------------------------------------------- policy


class OpClass(enum.Enum):
    """What narrowing an operator is worth (``numerics.md``, "The policy table")."""

    NARROW = "narrow"
    """Worth a cast of its inputs: matrix products, convolutions, recurrent cells."""
    FOLLOW = "follow"
    """Takes the format of its neighbours."""
    WIDE = "wide"
    """Stays FP32."""
    EXACT = "exact"
    """Moves or selects values and never rounds."""


class HiddenRange(enum.Enum):
    """A bound on values that live only inside an operator, from its input's absmax and reduction depth."""

    NONE = "none"
    SQUARE = "absmax^2"
    SUM = "absmax*depth"
    SUM_SQUARE = "absmax^2*depth"
    EXP = "exp(max)"
    SUM_EXP = "exp(max)*depth"
    CUBE = "absmax^3"


class Depth(enum.Enum):
    """Where the number of summed terms per output element comes from."""

    ONE = "1"
    INNER = "inner dimension of a matrix product"
    KERNEL = "input channels per group times kernel size"
    AXES = "product of the reduced axes"
    SPATIAL = "product of the spatial axes"
    LAST = "last axis, or the axis attribute"
    WINDOW = "pooling window"
    HIDDEN = "input size plus hidden size of a recurrent cell"
    INPUTS = "number of operands"


@dataclass(frozen=True, slots=True)
class OpPolicy:
    """One row of the policy table.

    ``since``/``until`` bracket the operator-set versions the row speaks for (``until`` None: no end).
    ``keep_wide``, ``saturate`` and ``nonzero`` name inputs as the schema does.  ``narrow_vars`` lists the
    type variables that become 16-bit; empty means every variable that a float output is bound to.
    """

    op_type: str
    op_class: OpClass
    reason: str
    source: str
    domain: str = ""
    since: int = 7
    until: int | None = None
    accumulate: str = "wide"
    keep_wide: tuple[str, ...] = ()
    saturate: tuple[str, ...] = ()
    nonzero: tuple[str, ...] = ()
    hidden_range: HiddenRange = HiddenRange.NONE
    depth: Depth = Depth.ONE
    narrow_vars: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True)
class EmulationProfile:
    """What the narrow hardware does beyond rounding to nearest even.

    ``overflow``: ``inf`` (IEEE) or ``saturate`` (to the largest finite number).  ``flush_subnormals``: narrow
    inputs and outputs below the smallest normal become zero.  ``narrow_accumulate``: operators whose policy row
    says ``accumulate="narrow"`` sum in the narrow format.
    """

    name: str = "ieee"
    overflow: str = "inf"
    flush_subnormals: bool = False
    narrow_accumulate: bool = False


@dataclass(frozen=True, slots=True)
class OutputTolerance:
    """Limits for one output; None means "no such limit" (``max_rel_l2``: take the rounding model's)."""

    max_rel_l2: float | None = None
    min_sqnr_db: float | None = None
    max_abs: float | None = None
    min_top1_agreement: float | None = None


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What error is acceptable.

    The default limit of an output is ``factor`` times the error the rounding model expects there, held
    between ``floor`` and ``ceiling`` (all relative L2).  ``outputs`` pairs a name pattern with limits of its own.
    """

    name: str
    factor: float
    floor: float
    ceiling: float
    default: OutputTolerance = OutputTolerance()
    outputs: tuple[tuple[str, OutputTolerance], ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyOverride:
    """One line of a policy file, or one ``--keep-fp32`` pattern.

    Every given field has to match: ``node`` and ``value`` are shell patterns over names, ``op_type`` is
    exact, ``inputs_from``/``feeds`` are operator types of a producer / a reader.  ``origin`` is what the
    user wrote, for messages.
    """

    format: str = "fp32"
    node: str | None = None
    value: str | None = None
    op_type: str | None = None
    inputs_from: str | None = None
    feeds: str | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True)
class ConversionRequest:
    """Everything besides model and batches that determines the result."""

    to: str = "fp16"
    io_types: str = "keep"
    overflow: str = "clamp"
    optimise: str = "size"
    overrides: tuple[PolicyOverride, ...] = ()
    tolerance: Tolerance | None = None
    max_rel_l2: float | None = None
    min_sqnr_db: float | None = None
    target: str = "any"
    provider: str = "none"
    profile: EmulationProfile = EmulationProfile()
    search: bool = False
    repair: bool = True
    validate: bool = True
    metrics: str = "core"
    dynamic: tuple[str, ...] = ()
    seed: int = 0
    headroom: float = 2.0
    observe_until_stable: bool = False
    """Stop observing once ranges have stopped growing (``ranges.observe``); the comparison still runs every batch."""


# --------------------------------------------------------------------------------------------- ranges

EXPONENT_BINS = 256
"""Bins of a binary-exponent histogram: the biased FP32 exponent (0: subnormals, 255: NaN and infinity)."""


@dataclass(frozen=True, slots=True)
class ValueRange:
    """What a float value was seen to hold in FP32, over all batches and iterations.

    ``exponents`` counts non-zero elements by biased FP32 exponent (see EXPONENT_BINS).  ``minimum``, ``maximum``
    and ``absmax`` are over finite elements, ``absmin_nonzero`` over finite ones that are not zero (0.0 when there
    is none).  ``integral``: every finite element is an integer (true when there is none).  ``shape`` is the shape
    with the most elements, of several the lexicographically largest, whatever the order they came in; ``(0,)``
    when nothing was seen.
    """

    shape: tuple[int, ...]
    count: int
    zeros: int
    minimum: float
    maximum: float
    absmax: float
    absmin_nonzero: float
    nan_count: int
    posinf_count: int
    neginf_count: int
    integral: bool
    exponents: tuple[int, ...]

    @property
    def nonfinite(self) -> int:
        return self.nan_count + self.posinf_count + self.neginf_count


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """The cheap part of a constant's range.

    ``absmax`` and ``mean_square`` (to three digits) mean something only when ``finite``: every element is
    finite, and so is the sum of their squares in FP32.
    """

    absmax: float
    mean_square: float
    finite: bool


# ----------------------------------------------------------------------------------------------- plan


@dataclass(frozen=True, slots=True)
class Evidence:
    """The number behind a decision: which value, what was seen, what the limit is."""

    value: str
    number: float
    limit: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one node and why.

    ``format`` is ``fp16``/``bf16`` (narrow), ``fp32`` (stays wide) or ``none`` (the node has no FP32 in it).
    ``rule`` names the policy class or rule file that decided.
    """

    node_id: int
    node: str
    op_type: str
    format: str
    rule: str
    reason: str
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class CastSite:
    """A Cast of a value to a format, placed in one scope and shared by all readers there."""

    value_id: int
    scope_id: int
    to: str


@dataclass(frozen=True, slots=True)
class ClampSite:
    """A Clip to ``[-bound, bound]``.

    ``place`` is ``cast`` (in front of the narrowing Cast of the value) or ``output`` (behind the narrow node
    that makes the value).  ``zone`` is ``beyond`` (the value passes the maximum on the batches) or ``guard``
    (it comes within the headroom).
    """

    value_id: int
    value: str
    node: str
    place: str
    zone: str
    bound: float
    absmax: float


@dataclass(frozen=True, slots=True)
class ConstantChange:
    """A constant whose stored values differ from the user's by more than rounding to nearest."""

    value: str
    node: str
    elements: int
    before: float
    after: float
    reason: str


@dataclass(frozen=True, slots=True)
class PrecisionPlan:
    """The whole rewrite before it happens.

    ``reads`` says for each (node id, input position) whose format is fixed, what it wants; ``leaves`` the same
    for (scope id, output position).  A port that stands in neither takes its value as it is stored.
    ``stored`` is the format of every float value; values of other types do not appear.
    """

    to: str
    decisions: tuple[Decision, ...]
    stored: Mapping[int, str]
    reads: Mapping[tuple[int, int], str]
    leaves: Mapping[tuple[int, int], str]
    casts: tuple[CastSite, ...]
    clamps: tuple[ClampSite, ...]
    saturated_constants: Mapping[int, float] = field(default_factory=dict)
    """Constant value id -> magnitude its narrow copy is limited to (sentinels only)."""

    def narrow_nodes(self) -> frozenset[int]:
        return frozenset(d.node_id for d in self.decisions if d.format == self.to)

    def to_text(self) -> str:
        """One line per decision, cast and clamp, for golden files and diffs."""
        lines = [f"to {self.to}"]
        for d in self.decisions:
            seen = f" [{d.evidence.value} {d.evidence.number:.6g} limit {d.evidence.limit:.6g}]" if d.evidence else ""
            lines.append(f"{d.format:5} {d.op_type} {d.node} ({d.rule}): {d.reason}{seen}")
        lines += [f"cast value {c.value_id} scope {c.scope_id} to {c.to}" for c in self.casts]
        lines += [f"clamp {c.value} at {c.place} ({c.zone}) to {c.bound:.6g}, seen {c.absmax:.6g}" for c in self.clamps]
        return "\n".join(lines) + "\n"


# ----------------------------------------------------------------------------------------- comparison


@dataclass(frozen=True, slots=True)
class ErrorFigures:
    """How far one value is from its FP32 reference, all batches together or the worst of them.

    Finite elements only enter the sums; NaN and infinities are compared by position and sign and counted.
    ``rel_l2_error`` against a reference of zeros is the value's own norm; ``sqnr_db`` is None when both
    are equal (``equal``) or the reference is zero (``zero_reference``).  ``absmax`` is the reference's, over its
    finite elements.  ``flushed`` counts elements that are zero while the finite reference is not, ``saturated``
    those at the format's largest finite magnitude while the reference lies beyond it.  Fields from
    ``max_rel_error`` on belong to the full set and are None in the core set.
    """

    count: int
    rel_l2_error: float | None
    max_abs_error: float
    cosine_similarity: float
    sqnr_db: float | None
    absmax: float
    equal: bool
    zero_reference: bool
    reference_nonfinite: int
    value_nonfinite: int
    misplaced_nonfinite: int
    """Elements that are NaN or infinite on one side only, or infinite with another sign."""
    saturated: int
    flushed: int
    max_rel_error: float | None = None
    max_rel_left_out: int | None = None
    max_ulp_error: float | None = None
    worst_row_rel_l2: float | None = None
    top1_agreement: float | None = None


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """One float value of the given model: FP32 against the mixed run."""

    value: str
    node: str
    op_type: str
    scope: str
    format: str
    shape: tuple[int, ...]
    accumulated: ErrorFigures | None
    local: ErrorFigures | None
    observed: ValueRange | None
    headroom_bits: float | None
    expected_rel_l2: float | None
    status: str
    """``as expected``, ``abnormal``, or ``not run`` (a branch that no batch took)."""
    module: str = ""
    source_line: str = ""
    inputs: tuple[str, ...] = ()
    """Names of the float values the node reads, constants left out: who to ask where an error came from."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a reader of the report has to know that is no error figure.

    ``kind``: ``reference-nonfinite``, ``diverged`` (streams took another branch, index or shape),
    ``dropped`` (model content not carried over), ``inlined``, ``raised-opset``, ``stale``, ``nothing-to-do``,
    ``nothing-measured`` ...
    """

    kind: str
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """One graph output under its tolerance; figures are the worst batch's."""

    value: str
    format: str
    type_string: str
    shape: tuple[int, ...]
    figures: ErrorFigures | None
    """None for an output that is no float tensor."""
    expected_rel_l2: float | None
    allowed: OutputTolerance
    mismatches: int
    """Elements that differ in an output of integers, booleans or strings."""
    worst_batch: int
    mean_rel_l2: float | None = None
    mean_rel_l2_interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class VerdictReason:
    """One limit that was broken."""

    limit: str
    value: float | None
    allowed: float | None
    output: str = ""
    layer: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``pass``, ``fail`` or ``unchecked``, with every limit that was broken."""

    status: str
    reasons: tuple[VerdictReason, ...] = ()


@dataclass(frozen=True, slots=True)
class RepairRound:
    """One round of the default path's repair: what failed, and which nodes became FP32 for it."""

    round: int
    worst_output: str
    error_before: float | None
    error_after: float | None
    widened: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PricePoint:
    """One line of the search's price list."""

    wide_nodes: int
    narrow_flops_share: float
    cast_bytes: int
    rel_l2_error: float
    chosen: bool
    label: str = ""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model file as the report names it; no absolute paths."""

    name: str
    sha256: str
    opset: int
    ir_version: int
    bytes: int
    weight_bytes: int
    nodes: int
    graph: str = ""
    """Name of the main graph, by which graph viewers find it."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What decides the last bits of a run."""

    narrowcast: str
    python: str
    onnx: str
    onnx_ir: str
    onnxruntime: str
    numpy: str
    ml_dtypes: str
    machine: str
    cpu_features: str
    threads: int
    prepacking: bool
    provider: str
    ran: str
    tf32: bool
    profile: str


@dataclass(frozen=True, slots=True)
class ClampOutcome:
    """A clamp site after the run: what it touched, and what the node costs when widened instead."""

    site: ClampSite
    touched: int
    widened_bytes: int | None = None
    widened_rel_l2: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures at the top of a report."""

    nodes: int
    float_nodes: int
    narrow_nodes: int
    casts: int
    clamps: int
    bytes_before: int
    bytes_after: int
    narrow_flops_share: float
    search_evaluations: int
    estimated_gain: float
    """Weight and activation traffic before over after, as a factor; a model of bandwidth, not a measurement."""


@dataclass(frozen=True, slots=True)
class ProviderOutput:
    """One float output of the converted model as a real provider computed it, against FP32; worst batch."""

    value: str
    provider: str
    rel_l2_error: float | None
    misplaced_nonfinite: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a conversion found; ``report.json_view`` writes it, the other views read that."""

    verdict: Verdict
    model: ModelFacts
    converted: ModelFacts | None
    request: ConversionRequest
    environment: Environment
    summary: Summary
    outputs: tuple[OutputComparison, ...]
    layers: tuple[LayerComparison, ...]
    decisions: tuple[Decision, ...]
    clamps: tuple[ClampOutcome, ...]
    constants_changed: tuple[ConstantChange, ...]
    findings: tuple[Finding, ...]
    repair: tuple[RepairRound, ...] = ()
    price_list: tuple[PricePoint, ...] = ()
    policy: tuple[PolicyOverride, ...] = ()
    """What repair or search kept FP32, as rules for ``--policy``."""
    provider_outputs: tuple[ProviderOutput, ...] = ()
    first_abnormal: str = ""
    batches: int = 0
    program: ProgramFacts | None = None
    """The PyTorch program the model was traced from."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds per stage; the only part that differs between two equal runs."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What ``converter.convert`` returns: the mixed model and the report.

    ``model`` is None when the result was written: ``files`` are its paths, the model first, external data after.
    """

    model: ir.Model | None
    report: Report
    files: tuple[str, ...] = ()
