// The columns of the layer table and of the decision table.

const nonfiniteText = (layer) => {
  const found = [layer.reference_nonfinite, layer.value_nonfinite, layer.misplaced_nonfinite];
  return found.some((amount) => amount > 0) ? found.map(count).join(" / ") : count(layer.misplaced_nonfinite);
};

const named = (title, key, width, limit = 80, value = (row) => row[key]) => ({
  key, title, width, value, show: (row) => nameNode(value(row), limit),
});

const numeric = (title, key, width, show, tip, value = (row) => row[key]) => ({
  key, title, width, tip, value, number: true, show: (row) => show(value(row), row),
});

const formatColumn = () => ({
  ...named("Format", "format", 72),
  show: (row) => el("span", { class: `format ${row.format}` }, formatLabel(row.format)),
});

const ascending = (column) => ({ ...column, largestFirst: false });

const layerColumns = (content) => [
  named("Layer", "name", 270),
  ascending(numeric("№", "index", 56, count, "Place in the order of execution")),
  named("Operator", "op_type", 150, 30),
  formatColumn(),
  named("Shape", "shape", 112),
  numeric("rel L2", "rel_l2_error", 78, figure, "Accumulated: in the run of the whole mixed model"),
  numeric("Alone", "local", 78, figure, "Local: this node alone, on FP32 inputs", localError),
  numeric("Expected", "expected_rel_l2", 86, figure, "What the rounding model expects here"),
  numeric("Max abs", "max_abs_error", 82, figure),
  numeric("Cosine", "cosine_similarity", 86, (value) => fixed(value, 6)),
  numeric("SQNR dB", "sqnr_db", 92, (value, row) => (row.equal ? "equal" : fixed(value, 1))),
  numeric("Saturated", "saturated", 94, count, "Elements at the format's largest number"),
  numeric("Flushed", "flushed", 82, count, "Non-zero elements that became zero"),
  numeric("NaN/inf", "misplaced_nonfinite", 110, (value, row) => nonfiniteText(row), "In FP32 / here / misplaced; sorted by misplaced"),
  rangeColumnOf(content),
  ascending(numeric("Headroom", "headroom_bits", 96, signed, "Bits to the format's largest number")),
  { ...named("Status", "status", 122), show: (row) => statusNode(row.status) },
  named("Why FP32", "reason", 320, 120, wideReason),
];

const rangeColumnOf = (content) => ({
  key: "range",
  title: "Range",
  width: 138,
  largestFirst: true,
  tip: "Smallest non-zero to largest magnitude; ticks: smallest normal and largest number",
  value: (row) => (row.range ? row.range.absmax : null),
  show: (row) => rangeBar(row, content),
});

const decisionColumns = () => {
  const evidence = (place) => (row) => (row.evidence ? row.evidence[place] : null);
  return [
    named("Node", "node", 300),
    named("Operator", "op_type", 150, 40),
    formatColumn(),
    named("Rule", "rule", 150, 60),
    named("Reason", "reason", 420, 200),
    numeric("Seen", "seen", 110, number, "The number that decided", evidence(1)),
    numeric("Limit", "limit", 110, number, "What it was held against", evidence(2)),
  ];
};

/** States to filter by, each with its test. */
const layerStates = ({ narrow }) => ({
  abnormal: (row) => row.status === "abnormal" || row.status === "over limit",
  "over limit": (row) => row.status === "over limit",
  "NaN or infinity misplaced": (row) => row.misplaced_nonfinite > 0,
  saturated: (row) => row.saturated > 0,
  flushed: (row) => row.flushed > 0,
  [`beyond ${narrow.label}`]: (row) => row.range !== null && row.range.absmax > narrow.max,
  "not run": (row) => row.status === "not run",
});
