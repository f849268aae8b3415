"""The shapes of graphs that break converters, as text: nodes from ``x`` to ``y``, put into any scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import onnx
from onnx import ModelProto

from tests.models.build import model

SCOPES: Final = ("main", "if", "loop", "scan", "function", "nested")
DOMAINS: Final = {"local": 1, "com.microsoft": 1}


@dataclass(frozen=True, slots=True)
class Trap:
    """Nodes from ``x`` to ``y`` and their types; ``narrow`` are operators that must compute in the narrow type."""

    name: str
    nodes: str
    narrow: frozenset[str]
    x: str = "float[2,3]"
    y: str = "float[2,3]"
    opset: int = 17

    def placed(self, scope: str) -> ModelProto:
        """A model with the nodes in a scope; its input is ``x0``."""
        made = model(_TEXTS[scope].format(x=self.x, y=self.y, nodes=self.nodes, **self._stacked()), self.opset,
                     domains=DOMAINS)  # fmt: skip
        for function in made.functions:
            del function.opset_import[:]
            function.opset_import.extend(made.opset_import)
        return made

    def _stacked(self) -> dict[str, str]:
        """The types of ``x`` and ``y`` with a leading axis of two."""
        return {"xs": _stack(self.x), "ys": _stack(self.y)}


def _stack(kind: str) -> str:
    element, _, rest = kind.partition("[")
    return f"{element}[2,{rest}" if rest.strip("]") else f"{element}[2]"


_FUNCTION = '<domain: "local", opset_import: ["": 1]> F (x) => (y) {{ {nodes} }}'
_TEXTS: Final = {
    "main": "g ({x} x0) => ({y} y) {{ x = Identity(x0) {nodes} }}",
    "if": "g ({x} x0, bool flag) => ({y} out) {{ x = Identity(x0) out = If(flag) <then_branch = t () => ({y} y) "
    "{{ {nodes} }}, else_branch = e () => ({y} y) {{ {nodes} }}> }}",
    "loop": "g ({x} x0) => ({x} last, {ys} all) {{ trips = Constant <value_int = 2> () "
    "go = Constant <value = bool {{1}}> () last, all = Loop(trips, go, x0) "
    "<body = b (int64 step, bool before, {x} x) => (bool after, {x} state, {y} y) "
    "{{ after = Identity(before) {nodes} half = Constant <value_float = 0.5> () state = Mul(x, half) }}> }}",
    "scan": "g ({xs} x0) => ({ys} all) {{ all = Scan <num_scan_inputs = 1, body = b ({x} x) => ({y} y) {{ {nodes} }}> "
    "(x0) }}",
    "function": "g ({x} x0) => ({y} y) {{ x = Identity(x0) y = local.F(x) }}" + _FUNCTION,
    "nested": "g ({x} x0, bool flag) => ({y} out) {{ x = Identity(x0) out = local.G(x, flag) }}"
    '<domain: "local", opset_import: ["": 1]> G (x, flag) => (out) {{ out = If(flag) <then_branch = t () => ({y} y) '
    "{{ y = local.F(x) }}, else_branch = e () => ({y} y) {{ y = local.F(x) }}> }}" + _FUNCTION,
}


def _trap(name: str, nodes: str, *narrow: str, **more: object) -> Trap:
    return Trap(name, nodes, frozenset(narrow), **more)  # type: ignore[arg-type]


W = "w = Constant <value = float[3] {0.5, -1.5, 2.0}> () "
SQUARE = {"x": "float[3,3]", "y": "float[3,3]"}

TRAPS: Final = (
    _trap("cast-to-float", "a = Cast <to = 1> (x) y = Relu(a)", "Relu"),
    _trap("integers-and-back", "i = Cast <to = 7> (x) f = Cast <to = 1> (i) y = Add(x, f)"),
    _trap("cast-like", "i = Cast <to = 6> (x) f = CastLike(i, x) y = Sub(x, f)"),
    _trap("eye-like-dtype", "e = EyeLike <dtype = 1> (x) y = Add(x, e)", "Add", **SQUARE),
    _trap("eye-like-default", "e = EyeLike(x) y = Add(x, e)", "Add", **SQUARE),
    _trap("random-like", "r = RandomUniformLike <high = 1.0, low = 1.0, seed = 1.0> (x) y = Mul(x, r)"),
    _trap("random-dtype", "r = RandomUniform <dtype = 1, high = 1.0, low = 1.0, shape = [2, 3]> () y = Mul(x, r)"),
    _trap("window", "n = Constant <value_int = 3> () v = HannWindow <periodic = 0> (n) y = Add(x, v)"),
    _trap("window-dtype", "n = Constant <value_int = 3> () v = BlackmanWindow <output_datatype = 1> (n) y = Add(x, v)"),
    _trap("constant-of-shape", "s = Shape(x) z = ConstantOfShape(s) y = Sub(x, z)", "Sub"),
    _trap("constant-value-float", "f = Constant <value_float = 0.25> () y = Mul(x, f)", "Mul"),
    _trap("constant-value-floats", "f = Constant <value_floats = [0.25, 1.0, 3.0]> () y = Mul(x, f)", "Mul"),
    _trap("shared-constant", W + "a = Mul(x, w) b = Exp(w) y = Add(a, b)", "Mul"),
    _trap("empty-optional-input", "h = Constant <value_float = 1.0> () a = Clip(x, , h) y = Abs(a)", "Clip", "Abs"),
    _trap("empty-optional-output", 'r = Constant <value_float = 0.0> () a, "" = Dropout(x, r) y = Neg(a)', "Neg"),
    _trap("names-of-ours", "x_fp16 = Relu(x) x_fp16_fp32 = Neg(x_fp16) x_bf16 = Abs(x_fp16_fp32) "
          "x_fp16_clamped = Add(x_bf16, x_fp16) y = Sub(x_fp16_clamped, x_bf16)", "Relu", "Neg", "Sub"),
    _trap("branches-agree", "q = Constant <value = bool {1}> () a = If(q) <then_branch = t2 () => (float[2,3] p) "
          "{ p = Relu(x) }, else_branch = e2 () => (float[2,3] p) { o = Abs(x) p = Exp(o) }> y = Neg(a)"),
    _trap("loop-state", "m = Constant <value_int = 3> () t = Constant <value = bool {1}> () a = Loop(m, t, x) "
          "<body = b2 (int64 j, bool u, float[2,3] v) => (bool uu, float[2,3] vv) { uu = Identity(u) h = Relu(v) "
          "vv = Add(h, x) }> y = Neg(a)"),
    _trap("sequence", "q = SequenceConstruct(x, x) k = Constant <value_int = 1> () a = SequenceAt(q, k) y = Relu(a)"),
    _trap("split-and-join", "q = SplitToSequence <axis = 1> (x) y = ConcatFromSequence <axis = 1> (q)"),
    _trap("optional", "o = Optional(x) a = OptionalGetElement(o) y = Relu(a)"),
    _trap("float64-island", "d = Cast <to = 11> (x) e = Abs(d) r = Sqrt(e) f = Cast <to = 1> (r) y = Mul(x, f)"),
    _trap("quantized", "s = Constant <value = float {0.05}> () z = Constant <value = int8 {0}> () "
          "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Relu(d)"),
    _trap("dynamic-quantize", "q, s, z = DynamicQuantizeLinear(x) d = DequantizeLinear(q, s, z) y = Relu(d)"),
    _trap("contributed", "a = com.microsoft.Gelu(x) y = Neg(a)", "Gelu", "Neg"),
    _trap("already-narrow", "h = Cast <to = 10> (x) r = Relu(h) y = Cast <to = 1> (r)"),
    _trap("empty-tensor", "a = Relu(x) y = Neg(a)", "Relu", "Neg", x="float[0,3]", y="float[0,3]"),
    _trap("rank-0", "a = Relu(x) y = Add(a, a)", "Relu", "Add", x="float[]", y="float[]"),
    _trap("same-input-twice", "a = Mul(x, x) y = Concat <axis = 0> (a, a)", "Mul", y="float[4,3]"),
    _trap("fixed-float-input", "s = Constant <value = float[2] {2.0, 1.0}> () a = Relu(x) y = Resize(a, , s)", "Relu",
          y="float[4,3]"),
    _trap("wide-between-narrow", "a = Relu(x) b = Exp(a) y = Neg(b)"),
    _trap("integer-output", "a = Relu(x) y = ArgMax <axis = 1, keepdims = 1> (a)", "Relu", y="int64[2,1]"),
    _trap("bool-inside", "z = Constant <value_float = 0.0> () c1 = Greater(x, z) n = Neg(x) y = Where(c1, x, n)", "Neg",
          "Where"),
)  # fmt: skip


def text(proto: ModelProto) -> str:
    """The graph and functions, without the header of the file."""
    return onnx.printer.to_text(proto).split(">\n", 1)[1]
