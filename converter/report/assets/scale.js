// From figures to pixels: logarithmic axes, columns of layers, and the limits of the formats.

const logScale = (low, high, bottom, top) => (value) =>
  bottom + ((Math.min(Math.max(value, low), high) - low) / (high - low || 1)) * (top - bottom);

const positive = (value) => isNumber(value) && value > 0;

/** Powers of ten that hold all positive figures: three at least, twelve at most. */
function decades(values) {
  const logs = values.filter(positive).map(Math.log10);
  if (!logs.length) return [-6, 0];
  const [least, most] = bounds(logs);
  const high = Math.ceil(most + 0.05);
  return [Math.max(high - 12, Math.min(high - 3, Math.floor(least))), high];
}

/** Smallest and largest of a list that may be too long for one call's arguments. */
const bounds = (list) => list.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

/** Powers of two that hold every range seen, and the limits of FP16 with some room. */
function octaves(layers) {
  let [low, high] = [-27, 19];
  for (const { range } of layers) {
    if (!range) continue;
    if (positive(range.absmin_nonzero)) low = Math.min(low, Math.floor(Math.log2(range.absmin_nonzero)) - 1);
    if (positive(range.absmax)) high = Math.max(high, Math.ceil(Math.log2(range.absmax)) + 1);
  }
  return [Math.max(low, -152), Math.min(high, 130)];
}

/** Steps of 1, 2 or 5 times a power of ten that give at most `most` ticks. */
function niceStep(span, most) {
  const rough = Math.max(1, span / most);
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

function ticks(low, high, step) {
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) found.push(value);
  return found;
}

/** Limits to draw: the wanted format's three, and the largest number of the other one where it is in sight. */
function limitLines(content) {
  const { narrow, formats } = content;
  const lines = [
    { at: Math.log2(narrow.max), text: `${narrow.label} largest ${number(narrow.max)}`, kind: "largest" },
    { at: Math.log2(narrow.normal), text: `${narrow.label} smallest normal`, kind: "normal" },
    { at: Math.log2(narrow.subnormal), text: `${narrow.label} smallest subnormal`, kind: "subnormal" },
  ];
  for (const other of formats.filter((format) => format !== narrow)) {
    lines.push({ at: Math.log2(other.max), text: `${other.label} largest ${number(other.max)}`, kind: "other" });
    lines.push({ at: Math.log2(other.normal), text: `${other.label} smallest normal`, kind: "other" });
  }
  return lines;
}

/** What a range means for the wanted format: the class that colours its bar. */
function rangeClass(layer, narrow) {
  if (layer.range && layer.range.absmax > narrow.max) return "beyond";
  return layer.format === "fp32" ? "wide" : "narrow";
}

/** A small bar of one layer's range, with ticks where the format ends. */
function rangeBar(layer, content, width = 118, height = 14) {
  const { range } = layer;
  const place = logScale(content.octaves[0], content.octaves[1], 1, width - 1);
  const drawn = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "range-bar", "aria-hidden": "true" },
    svg("rect", { x: 0, y: height / 2 - 0.5, width, height: 1, class: "frame" }));
  if (range && positive(range.absmax)) {
    const from = place(Math.log2(positive(range.absmin_nonzero) ? range.absmin_nonzero : range.absmax));
    const to = place(Math.log2(range.absmax));
    const kind = rangeClass(layer, content.narrow);
    drawn.append(svg("rect", { x: from, y: 3, width: Math.max(2, to - from), height: height - 6, rx: 1, class: kind }));
  }
  for (const edge of [content.narrow.max, content.narrow.normal]) {
    const x = place(Math.log2(edge));
    drawn.append(svg("line", { x1: x, x2: x, y1: 0, y2: height, class: "limit" }));
  }
  return drawn;
}

/** How often each power of two was seen, as bars over the same limits. */
function histogram(layer, content, width = 360, height = 84) {
  const [lowest, ...shares] = layer.exponents;
  const low = Math.min(lowest - 1, Math.log2(content.narrow.subnormal) - 1);
  const high = Math.max(lowest + shares.length + 1, Math.log2(content.narrow.max) + 2);
  const place = logScale(low, high, 0, width);
  const tallest = bounds(shares)[1];
  const bars = shares.map((share, n) => {
    const tall = (share / tallest) * (height - 18);
    const kind = lowest + n >= Math.log2(content.narrow.max) ? "beyond" : "narrow";
    const width = Math.max(1, place(low + 1) - 1);
    return svg("rect", { x: place(lowest + n) + 0.5, y: height - 14 - tall, width, height: tall, class: kind });
  });
  const mark = (text, edge, offset, anchor) => [
    svg("line", { x1: place(Math.log2(edge)), x2: place(Math.log2(edge)), y1: 0, y2: height - 14, class: "limit" }),
    svg("text", { x: place(Math.log2(edge)) + offset, y: 9, class: "limit-text", "text-anchor": anchor }, text),
  ];
  const marks = [...mark(`${content.narrow.label} max`, content.narrow.max, -3, "end"),
    ...mark("normal", content.narrow.normal, 3, "start")];
  const labels = ticks(low, high, niceStep(high - low, 8)).map((at) =>
    svg("text", { x: place(at), y: height - 2, class: "tick-text", "text-anchor": "middle" }, `2^${at}`));
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "histogram", role: "img",
    "aria-label": "Share of elements per power of two" }, ...bars, ...marks, ...labels);
}
