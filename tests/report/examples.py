"""Example reports: a small transformer encoder that passes or fails, hostile names, nothing at all, 5,000 layers.

Figures are invented but consistent: error grows with depth, an overflow spreads to everything behind it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from converter.formats import FP16, FP32, NARROW_FORMATS
from converter.types import (
    EXPONENT_BINS,
    ClampOutcome,
    ClampSite,
    ConstantChange,
    ConversionRequest,
    Decision,
    Environment,
    ErrorFigures,
    Evidence,
    Finding,
    LayerComparison,
    ModelFacts,
    OutputComparison,
    OutputTolerance,
    PolicyOverride,
    PricePoint,
    RepairRound,
    Report,
    Summary,
    Tolerance,
    ValueRange,
    Verdict,
    VerdictReason,
)

TOLERANCE = Tolerance(name="fp16-default", factor=4.0, floor=1e-3, ceiling=5e-2)

ENVIRONMENT = Environment(
    narrowcast="0.1.0",
    python="3.11.7",
    onnx="1.23.0",
    onnx_ir="1.1.0",
    onnxruntime="1.32.0",
    numpy="2.4.6",
    ml_dtypes="0.5.4",
    machine="x86_64",
    cpu_features="avx2 avx512f fma",
    threads=2,
    prepacking=False,
    provider="none",
    ran="emulator (ieee)",
    tf32=False,
    profile="ieee",
)

GIVEN = ModelFacts("encoder.onnx", "3f" * 32, 17, 8, 438_021_733, 437_204_480, 214, "main_graph")
MADE = ModelFacts("encoder.fp16.onnx", "a7" * 32, 17, 8, 220_448_112, 219_512_832, 268, "main_graph")

BLOCK = (
    ("attn/query/MatMul", "MatMul", 1.6),
    ("attn/key/MatMul", "MatMul", 1.4),
    ("attn/scores/MatMul", "MatMul", 5.0),
    ("attn/Softmax", "Softmax", -0.2),
    ("attn/context/MatMul", "MatMul", 1.1),
    ("attn/Add", "Add", 3.2),
    ("attn/norm/LayerNormalization", "LayerNormalization", 2.2),
    ("ffn/up/MatMul", "MatMul", 4.4),
    ("ffn/Pow", "Pow", 9.0),
    ("ffn/Tanh", "Tanh", 0.0),
    ("ffn/Mul", "Mul", 4.0),
    ("ffn/down/MatMul", "MatMul", 3.0),
    ("ffn/Add", "Add", 4.2),
    ("norm/LayerNormalization", "LayerNormalization", 2.4),
)
"""Node name, operator, log2 of the usual absmax."""

WIDE_OPERATORS = {"Softmax": "softmax", "Pow": "hidden range"}


@dataclass
class Story:
    """A network under way: what has been made, and how large the error is by now."""

    blocks: int
    seed: int
    to: str = "fp16"
    broken_block: int | None = None
    error: float = 0.0
    misplaced: int = 0
    layers: list[LayerComparison] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def tell(self) -> Story:
        source, before = random.Random(self.seed), "embeddings"
        for block in range(self.blocks):
            for name, op_type, absmax_log2 in BLOCK:
                before = self._layer(source, block, name, op_type, absmax_log2, before)
        return self

    def _layer(self, source: random.Random, block: int, name: str, op_type: str, reach: float, before: str) -> str:
        node = f"/encoder/layer.{block}/{name}"
        broken = block == self.broken_block and name == "ffn/Pow"
        reach += source.gauss(0, 0.4) + (8.0 if broken else 0.0)
        stored = self.to if broken or op_type not in WIDE_OPERATORS else "fp32"
        roundoff = NARROW_FORMATS[self.to].unit_roundoff
        own = roundoff * source.uniform(0.3, 0.7) if stored != "fp32" else 0.0
        expected = short(roundoff * 0.5 * math.sqrt(len(self.layers) + 1))
        self.error = short(math.hypot(self.error * source.uniform(0.9, 1.08), own))
        if broken:
            self.error, self.misplaced = 0.31, 12
        elif self.misplaced:
            self.misplaced = min(self.misplaced * 4, 98_304)
        own = 0.31 if broken else short(own)
        value = f"{node}_output_0"
        abnormal = self.error > 4 * expected or bool(self.misplaced)
        self.layers.append(
            LayerComparison(
                value=value,
                node=node,
                op_type=op_type,
                scope="",
                format=stored,
                shape=(1, 128, 768),
                accumulated=figures(self.error, 2.0**reach, misplaced=self.misplaced),
                local=figures(own, 2.0**reach, misplaced=12 if broken else 0),
                observed=seen(reach, source),
                headroom_bits=short(math.log2((FP16 if stored != "fp32" else FP32).max_finite) - reach),
                expected_rel_l2=expected,
                status="abnormal" if abnormal else "as expected",
                module=f"encoder.layer.{block}.{name.rpartition('/')[0].replace('/', '.')}",
                source_line="",
                inputs=(before,)
                if op_type != "Add"
                else (before, f"/encoder/layer.{block}/attn/query/MatMul_output_0"),
            )
        )
        self.decisions.append(decision(len(self.decisions), node, op_type, stored, value, 2.0**reach))
        return value


def decision(number: int, node: str, op_type: str, stored: str, value: str, absmax: float) -> Decision:
    if stored == "fp32":
        rule, evidence = WIDE_OPERATORS[op_type], Evidence(value, short(absmax**3), FP16.max_finite)
        return Decision(
            number, node, op_type, stored, rule, f"{op_type} may pass the format's maximum inside", evidence
        )
    narrow = op_type == "MatMul"
    reason = "worth a cast of its inputs" if narrow else "takes the format of its neighbours"
    return Decision(number, node, op_type, stored, "narrow" if narrow else "follow", reason)


def short(value: float) -> float:
    """Six digits, so that golden files do not hang on the last bit of a platform's mathematics."""
    return float(f"{value:.6g}")


def figures(error: float, absmax: float, misplaced: int = 0, full: bool = False) -> ErrorFigures:
    return ErrorFigures(
        count=98_304,
        rel_l2_error=error,
        max_abs_error=short(error * absmax * 1.7),
        cosine_similarity=round(1 - error**2 / 2, 9),
        sqnr_db=short(-20 * math.log10(error)) if error else None,
        absmax=short(absmax),
        equal=error == 0,
        zero_reference=False,
        reference_nonfinite=0,
        value_nonfinite=misplaced,
        misplaced_nonfinite=misplaced,
        saturated=misplaced // 3,
        flushed=int(error * 4000),
        max_rel_error=short(error * 214) if full else None,
        max_rel_left_out=3 if full else None,
        max_ulp_error=short(error * 9000) if full else None,
        worst_row_rel_l2=short(error * 3.5) if full else None,
        top1_agreement=1.0 if full else None,
    )


def seen(reach: float, source: random.Random) -> ValueRange:
    """A range whose magnitudes thin out below ``2**reach``."""
    top, counts = math.floor(reach) + 127, [0] * EXPONENT_BINS
    for below in range(24):
        counts[max(top - below, 0)] = int(98_304 * math.exp(-((below - 3.5) ** 2) / 9) / 5.3 * source.uniform(0.9, 1.1))
    largest = short(2.0**reach)
    return ValueRange(
        shape=(1, 128, 768),
        count=98_304,
        zeros=12,
        minimum=-largest,
        maximum=short(largest * 0.8),
        absmax=largest,
        absmin_nonzero=short(2.0 ** (reach - 20 + source.uniform(-3, 3))),
        nan_count=0,
        posinf_count=0,
        neginf_count=0,
        integral=False,
        exponents=tuple(counts),
    )


def output(name: str, error: float, misplaced: int = 0, to: str = "fp16") -> OutputComparison:
    return OutputComparison(
        value=name,
        format="fp32",
        type_string="tensor(float)",
        shape=(1, 128, 768),
        figures=figures(error, 9.4, misplaced, full=True),
        expected_rel_l2=5.2e-4 * NARROW_FORMATS[to].eps / FP16.eps,
        allowed=OutputTolerance(max_rel_l2=2.1e-3 * NARROW_FORMATS[to].eps / FP16.eps),
        mismatches=0,
        worst_batch=1,
        mean_rel_l2=short(error * 0.9),
        mean_rel_l2_interval=(short(error * 0.8), error),
    )


def ids_output() -> OutputComparison:
    """An output of integers: no figures, a count of mismatches."""
    return OutputComparison("token_ids", "none", "tensor(int64)", (1, 128), None, None, OutputTolerance(), 0, 0)


def summary(story: Story) -> Summary:
    total = len(story.decisions)
    wide = sum(d.format == "fp32" for d in story.decisions)
    return Summary(total + 40, total, total - wide, 2 * wide + 2, 2, GIVEN.bytes, MADE.bytes, 0.973, 0, 1.91)


CLAMPS = (
    ClampOutcome(
        ClampSite(1, "/encoder/mask/Mul_output_0", "/encoder/mask/Mul", "cast", "beyond", 65504.0, 3.4e38),
        512,
        1_572_864,
        3.1e-4,
    ),
    ClampOutcome(ClampSite(2, "/encoder/scale_output_0", "/encoder/scale", "output", "guard", 65504.0, 41_230.0), 0),
)

CONSTANTS_CHANGED = (
    ConstantChange("mask_value", "/encoder/mask/Mul", 1, -3.4028234663852886e38, -65504.0, "mask sentinel, saturated"),
    ConstantChange("fill", "/encoder/Where", 4, -math.inf, -30_000.0, "meets a fully masked row"),
)

FINDINGS = (Finding("dropped", "training_info", "training information is not carried over"),)

REPAIR = (
    RepairRound(
        1,
        "/encoder/layer.0/norm/LayerNormalization_output_0",
        4.1e-3,
        6.3e-4,
        ("/encoder/layer.0/attn/Softmax",),
        "its local error was largest",
    ),
)

PRICE_LIST = (
    PricePoint(3, 0.99, 120_000, 2.9e-3, False, "fewest FP32 nodes"),
    PricePoint(4, 0.973, 180_000, 6.3e-4, True, "cheapest within the limit"),
)


def passing(blocks: int = 1, to: str = "fp16") -> Report:
    story = Story(blocks, seed=1, to=to).tell()
    last = story.layers[-1].value
    return Report(
        verdict=Verdict("pass"),
        model=GIVEN,
        converted=MADE,
        request=ConversionRequest(
            to=to,
            tolerance=replace(TOLERANCE, name=f"{to}-default"),
            overrides=(PolicyOverride(op_type="Softmax", origin="Softmax"), PolicyOverride("bf16", node="*/pooler/*")),
        ),
        environment=ENVIRONMENT,
        summary=summary(story),
        outputs=(
            output(last, story.error, to=to),
            output("pooler_output", short(story.error / 2), to=to),
            ids_output(),
        ),
        layers=tuple(story.layers),
        decisions=tuple(story.decisions),
        clamps=CLAMPS,
        constants_changed=CONSTANTS_CHANGED,
        findings=FINDINGS,
        repair=REPAIR,
        price_list=PRICE_LIST,
        batches=2,
        timings={"load": 0.21, "observe": 1.52, "decide": 0.03, "rewrite": 0.4, "compare": 2.75},
    )


def failing(blocks: int = 1, broken_block: int = 0) -> Report:
    """An FP16 overflow in one block, and everything behind it wrong."""
    story = Story(blocks, seed=2, broken_block=broken_block).tell()
    first = next(layer for layer in story.layers if layer.status == "abnormal")
    good, last = passing(), story.layers[-1].value
    assert first.observed is not None
    reasons = (
        VerdictReason(
            "max_rel_l2",
            story.error,
            2.1e-3,
            output=last,
            message=f"output {last} has a relative L2 error of "
            f"{story.error:.3g} in batch 1, 0.0021 is allowed; keep {first.node} FP32",
        ),
        VerdictReason("nonfinite", math.nan, None, output=last, message=""),
        VerdictReason(
            "nonfinite", 12.0, 0.0, layer=first.node, message=f"{first.node} makes 12 NaN that FP32 does not have"
        ),
    )
    return replace(
        good,
        verdict=Verdict("fail", reasons),
        outputs=(output(last, story.error, story.misplaced), output("pooler_output", 8e-4), ids_output()),
        layers=tuple(story.layers),
        decisions=tuple(story.decisions),
        summary=summary(story),
        first_abnormal=first.value,
        request=replace(good.request, search=True, seed=7, max_rel_l2=2.1e-3),
    )


HOSTILE = (
    "</script><img src=x onerror=\"document.title='owned'\">",
    "<!--<script>document.title='owned'</script>",
    "&lt;b&gt;&amp;\"'`|*_[x](javascript:alert(1))",
    '=HYPERLINK("http://example.invalid")',
    "@SUM(1)\t-2+3",
    "\x1b]8;;http://example.invalid\x1b\\click\x1b]8;;\x1b\\ \x1b[31mred",
    "abc\u202etxt.exe\u2066\u200b",
    "line\nbreak\r\nand\u2028separators\u2029\x00\x7f\x9f",
    "[red]markup[/red] :smile:",
    "lone surrogate \ud800 end",
    "${alert(1)} {{7*7}} <%= 7 %>",
    "x" * 1_000_000,
    "",
)


def hostile() -> Report:
    """Every string that a model file could choose is one of HOSTILE."""
    base = failing()
    layers = tuple(_poisoned(layer, HOSTILE[n % len(HOSTILE)]) for n, layer in enumerate(base.layers))
    bad = HOSTILE[0]
    return replace(
        base,
        model=replace(base.model, name=bad, graph=HOSTILE[5]),
        layers=layers,
        decisions=tuple(
            replace(d, node=layer.node, op_type=layer.op_type, reason=layer.node[:500], rule=HOSTILE[2])
            for d, layer in zip(base.decisions, layers, strict=True)
        ),
        outputs=tuple(replace(o, value=name) for o, name in zip(base.outputs, HOSTILE[:3], strict=True)),
        verdict=Verdict(
            "fail", tuple(VerdictReason("max_rel_l2", 1.0, 0.1, output=n, message=f"in {n[:500]}") for n in HOSTILE)
        ),
        clamps=tuple(replace(c, site=replace(c.site, value=bad, node=bad)) for c in base.clamps),
        constants_changed=tuple(
            replace(c, value=n, node=n, reason=n) for c, n in zip(base.constants_changed, HOSTILE, strict=False)
        ),
        findings=tuple(Finding(n[:100], n, n) for n in HOSTILE),
        repair=(RepairRound(1, bad, math.inf, math.nan, HOSTILE, bad),),
        price_list=(PricePoint(1, 0.5, 1, math.inf, True, bad),),
        request=replace(
            base.request, overrides=tuple(PolicyOverride(node=n, origin=n) for n in HOSTILE), dynamic=HOSTILE[:2]
        ),
        first_abnormal=layers[8].value,
    )


def _poisoned(layer: LayerComparison, name: str) -> LayerComparison:
    return replace(
        layer, value=name, node=name, op_type=name[:60], module=name, source_line=name, inputs=(name, HOSTILE[0])
    )


def empty() -> Report:
    """Converted without validation: nothing was observed, compared or measured."""
    base = passing()
    return replace(
        base,
        verdict=Verdict("unchecked"),
        converted=None,
        summary=Summary(0, 0, 0, 0, 0, 0, 0, math.nan, 0, math.nan),
        request=ConversionRequest(to="bf16", validate=False, repair=False),
        outputs=(),
        layers=(),
        decisions=(),
        clamps=(),
        constants_changed=(),
        findings=(),
        repair=(),
        price_list=(),
        batches=0,
        timings={},
    )


def large(layers: int = 5_000) -> Report:
    blocks = math.ceil(layers / len(BLOCK))
    report = failing(blocks, broken_block=blocks // 2)
    return replace(report, layers=report.layers[:layers], decisions=report.decisions[:layers])
