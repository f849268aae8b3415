"""Tiny graphs that hold one feature each, and what to feed them.

Every graph runs in ONNX Runtime and converts; tests that state an invariant walk over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from converter.graph import ModelIndex, type_string
from tests.models.build import Array, loaded, model


@dataclass(frozen=True)
class Tiny:
    """One graph: its text, what it is there for, its weights by shape, and integers it has to be fed."""

    name: str
    purpose: str
    text: str
    opset: int = 17
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    domains: Mapping[str, int] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        rng = np.random.default_rng(len(self.text))
        arrays = {n: (0.5 * rng.standard_normal(s)).astype(np.float32) for n, s in self.weights.items()}
        if "variance" in arrays:
            arrays["variance"] = np.abs(arrays["variance"])
        return model(self.text, self.opset, arrays, self.domains)

    def index(self) -> ModelIndex:
        return loaded(self.model()).index

    def feeds(self, rng: np.random.Generator) -> dict[str, Any]:
        return feeds_for(self.index(), rng) | {k: np.array(v) for k, v in self.given.items()}


def feeds_for(index: ModelIndex, rng: np.random.Generator) -> dict[str, Any]:
    """Random values for every input without a default; free dimensions become 3, booleans true."""
    found: dict[str, Any] = {}
    for value in index.model.graph.inputs:
        kind = type_string(value.type) or ""
        if value.name in index.model.graph.initializers:
            continue
        shape = tuple(d if isinstance(d, int) else 3 for d in (value.shape or ()))
        element = kind.rstrip(")").rpartition("(")[2]
        if kind.startswith("seq("):
            found[value.name or ""] = [_values(element, (2, 2), rng) for _ in range(3)]
        else:
            found[value.name or ""] = _values(element, shape, rng)
    return found


def _values(element: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if element == "bool":
        return np.ones(shape, np.bool_)
    if element == "string":
        return np.full(shape, "a", object)
    if element in ("float", "double", "float16", "bfloat16"):
        wanted = {"double": np.float64, "float16": np.float16}.get(element, np.float32)
        return rng.standard_normal(shape).astype(wanted)
    return rng.integers(1, 3, shape).astype(element)


TINY = (
    Tiny("mlp", "matrix products with weights, bias, activation",
         """g (float[N, 4] x) => (float[N, 3] y) {
              h = Gemm(x, w, b)  a = Relu(h)  y = MatMul(a, v) }""",
         weights={"w": (4, 5), "b": (5,), "v": (5, 3)}),
    Tiny("conv", "convolution, pooling, flattening",
         """g (float[1, 2, 8, 8] x) => (float[1, 27] y) {
              c = Conv<kernel_shape = [3, 3]>(x, w, b)  r = Relu(c)
              p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)  y = Flatten(p) }""",
         weights={"w": (3, 2, 3, 3), "b": (3,)}),
    Tiny("attention", "products of activations, scaling, Softmax, Transpose",
         """g (float[1, 4, 8] x) => (float[1, 4, 8] y) <float k = {0.35}> {
              q = MatMul(x, wq)  kk = MatMul(x, wk)  v = MatMul(x, wv)
              t = Transpose<perm = [0, 2, 1]>(kk)  s = MatMul(q, t)  z = Mul(s, k)
              p = Softmax<axis = -1>(z)  o = MatMul(p, v)  y = Add(x, o) }""",
         weights={"wq": (8, 8), "wk": (8, 8), "wv": (8, 8)}),
    Tiny("norm", "LayerNormalization with all outputs",
         """g (float[2, 8] x) => (float[2, 8] y, float[2, 1] m, float[2, 1] s) {
              h = MatMul(x, w)  y, m, s = LayerNormalization(h, scale, bias) }""",
         weights={"w": (8, 8), "scale": (8,), "bias": (8,)}),
    Tiny("recurrent", "LSTM with left-out inputs and outputs",
         """g (float[3, 1, 4] x) => (float[3, 1, 1, 2] y, float[1, 1, 2] c) {
              y, , c = LSTM<hidden_size = 2>(x, w, r) }""",
         weights={"w": (1, 8, 4), "r": (1, 8, 2)}, opset=22),
    Tiny("branch", "If with captured values and an initializer of its own",
         """g (float[2, 4] x, bool c) => (float[2, 4] y) {
              h = MatMul(x, w)
              y = If(c) <then_branch = t () => (float[2, 4] u) <float[1] k = {2}> { a = MatMul(h, w)  u = Mul(a, k) },
                         else_branch = e () => (float[2, 4] u) { u = Neg(h) }> }""",
         weights={"w": (4, 4)}),
    Tiny("loop", "Loop with a carried state, a scan output and a captured weight",
         """g (float[2, 4] x, int64 n) => (float[2, 4] y, float[N, 2, 4] s) {
              y, s = Loop(n, , x) <body = b (int64 i, bool c, float[2, 4] h) => (bool d, float[2, 4] z, float[2, 4] r) {
                d = Identity(c)  r = MatMul(h, w)  z = Tanh(r) }> }""",
         weights={"w": (4, 4)}, given={"n": 3}),
    Tiny("condition", "Loop that ends by its condition",
         """g (float[2] x) => (float[2] y, int64 count) <int64 zero = {0}, int64 one = {1}, bool go = {1}> {
              y, count = Loop(, go, x, zero) <body = b (int64 i, bool c, float[2] h, int64 k)
                  => (bool d, float[2] z, int64 m) <int64 five = {5}> {
                m = Add(k, one)  d = Less(m, five)  z = Mul(h, h) }> }"""),
    Tiny("no iterations", "Loop that is not entered",
         """g (float[2] x, int64 n) => (float[2] y, float[K, 2] s) {
              y, s = Loop(n, , x) <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] z, float[2] r) {
                d = Identity(c)  r = Neg(h)  z = Abs(h) }> }""",
         given={"n": 0}),
    Tiny("no state", "Loop with a trip count alone, that only collects",
         """g (float[2] x, int64 n) => (float[N, 2] s) {
              s = Loop(n, , ) <body = b (int64 i, bool c) => (bool d, float[2] r) {
                d = Identity(c)  f = Cast<to = 1>(i)  r = Mul(x, f) }> }""",
         given={"n": 3}),
    Tiny("nested", "a Loop in an If in a Loop, reading values of every scope around it",
         """g (float[2, 2] x, int64 n, bool c) => (float[2, 2] y) {
              k = MatMul(x, w)
              y = Loop(n, , x) <body = outer (int64 i, bool p, float[2, 2] h) => (bool q, float[2, 2] o) {
                q = Identity(p)  m = MatMul(h, w)
                o = If(c) <then_branch = t () => (float[2, 2] u) {
                      u = Loop(n, , m) <body = inner (int64 j, bool p2, float[2, 2] g) => (bool q2, float[2, 2] v) {
                        q2 = Identity(p2)  a = MatMul(g, k)  b = Add(a, h)  v = Tanh(b) }>
                    }, else_branch = e () => (float[2, 2] u) { u = Neg(m) }> }> }""",
         weights={"w": (2, 2)}, given={"n": 2}),
    Tiny("hidden names", "a body whose input hides an outer value, and branches that use the same names",
         """g (float[2, 2] x, int64 n, bool c) => (float[2, 2] y) {
              h = MatMul(x, w)
              l = Loop(n, , h) <body = b (int64 i, bool p, float[2, 2] x) => (bool q, float[2, 2] z) {
                q = Identity(p)  z = MatMul(x, w) }>
              y = If(c) <then_branch = t () => (float[2, 2] u) { z = MatMul(l, w)  u = Neg(z) },
                         else_branch = e () => (float[2, 2] u) { z = MatMul(l, h)  u = Abs(z) }> }""",
         weights={"w": (2, 2)}, given={"n": 2}),
    Tiny("scan", "Scan backwards, over another axis, with a state",
         """g (float[2] h, float[2, 5] q) => (float[2] y, float[2, 5] s) {
              y, s = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
                          scan_output_axes = [1], scan_output_directions = [1],
                          body = b (float[2] i, float[2] e) => (float[2] o, float[2] r) {
                            o = Add(i, e)  r = Mul(o, e) }>(h, q) }"""),
    Tiny("scan 8", "Scan of opset 8: a batch axis and sequence lengths",
         """g (int64[2] l, float[2, 2] h, float[2, 3, 2] q) => (float[2, 2] y, float[2, 3, 2] s) {
              y, s = Scan<num_scan_inputs = 1, body = b (float[2] i, float[2] e) => (float[2] o, float[2] r) {
                            o = Add(i, e)  r = Mul(o, e) }>(l, h, q) }""",
         opset=8, given={"l": [3, 2]}),
    Tiny("sequence", "sequences made, changed and taken apart",
         """g (float[2, 2] x) => (float[4, 2] y, int64 n) <int64 one = {1}> {
              a = Relu(x)  b = Neg(x)  s = SequenceConstruct(a, b)  t = SequenceInsert(s, x, one)
              u = SequenceErase(t, one)  y = ConcatFromSequence<axis = 0>(u)  n = SequenceLength(t) }"""),
    Tiny("sequence in and out", "a sequence as graph input and output",
         """g (seq(float[2, 2]) q) => (seq(float[2, 2]) r, float[2, 2] y) <int64 last = {-1}> {
              y = SequenceAt(q, last)  z = MatMul(y, y)  r = SequenceInsert(q, z) }"""),
    Tiny("sequence map", "SequenceMap with an argument that is no sequence",
         """g (float[6, 2] x, float[2] k) => (float[6, 2] y) {
              s = SplitToSequence<axis = 0>(x)
              m = SequenceMap(s, k) <body = b (float[1, 2] e, float[2] f) => (float[1, 2] r) { r = Mul(e, f) }>
              y = ConcatFromSequence<axis = 0>(m) }"""),
    Tiny("optional", "an optional with and without an element",
         """g (float[2] x) => (float[2] y, bool p, bool q) {
              o = Optional(x)  p = OptionalHasElement(o)  y = OptionalGetElement(o)
              e = Optional<type = float[2]>()  q = OptionalHasElement(e) }""", opset=18),
    Tiny("function", "a model-local function that calls another",
         """g (float[2, 4] x) => (float[2, 4] y) { y = f.Block<slope = 0.2>(x, w) }
            <domain: "f", opset_import: ["" : 17, "f" : 1]>
            Block <slope> (a, b) => (c) { h = MatMul(a, b)  c = f.Leak<slope: float = @slope>(h) }
            <domain: "f", opset_import: ["" : 17]>
            Leak <slope> (a) => (b) { b = LeakyRelu<alpha: float = @slope>(a) }""",
         weights={"w": (4, 4)}, domains={"f": 1}),
    Tiny("double", "an island of FP64",
         """g (float[2, 4] x) => (float[2, 4] y) <int64[1] axes = {1}> {
              h = MatMul(x, w)  d = Cast<to = 11>(h)  e = Exp(d)  s = ReduceSum<keepdims = 1>(e, axes)
              q = Div(e, s)  f = Cast<to = 1>(q)  y = MatMul(f, w) }""",
         weights={"w": (4, 4)}),
    Tiny("quantized", "QuantizeLinear and DequantizeLinear around a product",
         """g (float[2, 4] x) => (float[2, 4] y) <float k = {0.05}, uint8 z = {128}> {
              q = QuantizeLinear(x, k, z)  d = DequantizeLinear(q, k, z)  y = MatMul(d, w) }""",
         weights={"w": (4, 4)}),
    Tiny("already narrow", "FP16 in the middle, made by the user",
         """g (float[2, 4] x) => (float[2, 4] y) {
              h = MatMul(x, w)  n = Cast<to = 10>(h)  m = Mul(n, n)  c = Cast<to = 1>(m)  y = MatMul(c, w) }""",
         weights={"w": (4, 4)}),
    Tiny("outputs", "outputs that are an input, a weight, and read inside",
         """g (float[2, 4] x) => (float[2, 4] x, float[4, 4] w, float[2, 4] h, float[2, 4] y) {
              h = MatMul(x, w)  y = MatMul(h, w) }""",
         weights={"w": (4, 4)}),
    Tiny("shared", "a weight read by narrow and by wide nodes, an input read twice by one node",
         """g (float[4, 4] x) => (float[4, 4] y) {
              h = MatMul(x, w)  e = Exp(w)  s = Softmax(e)  m = Mul(h, h)  y = Add(m, s) }""",
         weights={"w": (4, 4)}),
    Tiny("constants", "every way to write a constant",
         """g (float[2, 2] x, int64[1] n) => (float[2, 2] y) {
              a = Constant<value_float = 1.5>()  b = Constant<value_floats = [0.5, 0.25]>()
              c = Constant<value = float[2] {2, 3}>()
              z = ConstantOfShape(n)  o = ConstantOfShape<value = float[1] {1}>(n)
              h = MatMul(x, x)  i = Mul(h, a)  j = Add(i, b)  k = Mul(j, c)  l = Add(k, z)  y = Mul(l, o) }""",
         given={"n": [2]}),
    Tiny("defaults", "a weight that the caller may replace",
         "g (float[2, 2] x, float[2, 2] w = {1, 2, 3, 4}) => (float[2, 2] y) { h = MatMul(x, w)  y = Relu(h) }"),
    Tiny("empty", "a dimension of zero, and numbers without a dimension",
         """g (float[0, 4] x, float k) => (float[0, 4] y, float z) {
              h = MatMul(x, w)  y = Mul(h, k)  z = Mul(k, k) }""",
         weights={"w": (4, 4)}),
    Tiny("old", "opset 7",
         """g (float[2, 4] x) => (float[2, 4] y) {
              h = MatMul(x, w)  b = BatchNormalization(h, s, c, m, variance)  d = Dropout(b)
              p = Pad<pads = [0, 1, 0, 1]>(d)  q = Slice<axes = [1], starts = [1], ends = [5]>(p)  y = Softmax(q) }""",
         opset=7, weights={"w": (4, 4), "s": (4,), "c": (4,), "m": (4,), "variance": (4,)}),
    Tiny("text", "strings beside floats",
         """g (string[2] t, float[2, 2] x) => (string[2] u, float[2, 2] y) {
              u = Identity(t)  y = MatMul(x, x) }"""),
    Tiny("contributed", "operators of ONNX Runtime",
         """g (float[2, 4] x) => (float[2, 4] y) {
              h = com.microsoft.FusedMatMul<alpha = 0.5>(x, w)  y = com.microsoft.Gelu(h) }""",
         weights={"w": (4, 4)}, domains={"com.microsoft": 1}),
)  # fmt: skip
"""All of them."""


def tiny(name: str) -> Tiny:
    return next(t for t in TINY if t.name == name)
