// Two charts over the layers in the order of execution, with one cursor and one zoom between them.

const MARGIN = { left: 58, top: 18, bottom: 26 };
const GUTTER = 150; // for the names of limits, right of the plot

/** What both charts share: which layers are in sight and which one is pointed at. */
class ChartLink {
  constructor(content, open, zoomed) {
    Object.assign(this, { content, layers: content.layers, open, zoomed, charts: [], cursor: null });
    [this.from, this.to] = [0, content.layers.length];
  }

  zoom(from, to) {
    this.from = Math.max(0, Math.min(from, to));
    this.to = Math.min(this.layers.length, Math.max(from, to));
    if (this.to - this.from < 2) {
      [this.from, this.to] = [Math.max(0, this.from - 1), Math.min(this.layers.length, this.to + 1)];
    }
    const whole = this.from === 0 && this.to === this.layers.length;
    this.charts.forEach((chart) => chart.render());
    this.zoomed(whole ? null : [this.from, this.to]);
  }

  point(index) {
    this.cursor = index === null ? null : Math.max(this.from, Math.min(this.to - 1, index));
    this.charts.forEach((chart) => chart.moveCursor());
  }
}

class LayerChart {
  /** `paint(chart)` gives the drawing, `say(layer)` the lines of the tool tip, `legend` its key. */
  constructor(link, { mount, height, label, paint, say, legend }) {
    Object.assign(this, { link, height, label, paint, say });
    this.tip = el("div", { class: "tip", hidden: true });
    this.reset = button("Show all layers", () => link.zoom(0, link.layers.length), { class: "reset", hidden: true });
    this.frame = el("div", { class: "frame" });
    this.box = el("div", { class: "chart" }, el("div", { class: "legend" }, ...legend, this.reset), this.frame, this.tip);
    mount.append(this.box);
    link.charts.push(this);
    new ResizeObserver(() => this.frame.clientWidth !== this.drawnWidth && this.render()).observe(this.frame);
  }

  get roomy() {
    return this.drawnWidth > 700;
  }

  get width() {
    return Math.max(80, this.drawnWidth - MARGIN.left - (this.roomy ? GUTTER : 14));
  }

  get right() {
    return MARGIN.left + this.width;
  }

  x(index) {
    return MARGIN.left + ((index - this.link.from + 0.5) / (this.link.to - this.link.from)) * this.width;
  }

  /** Layers grouped so that no two groups share a pixel column. */
  groups() {
    const { from, to, layers } = this.link;
    const each = Math.max(1, Math.ceil((to - from) / this.width));
    const found = [];
    for (let start = from; start < to; start += each) {
      found.push({ x: this.x(start + (each - 1) / 2), layers: layers.slice(start, Math.min(to, start + each)) });
    }
    return found;
  }

  render() {
    this.drawnWidth = this.frame.clientWidth;
    if (!this.drawnWidth) return;
    const { from, to, layers } = this.link;
    this.reset.hidden = from === 0 && to === layers.length;
    this.cursorLine = svg("line", { y1: MARGIN.top, y2: this.height - MARGIN.bottom, class: "cursor", visibility: "hidden" });
    this.brush = svg("rect", { y: MARGIN.top, height: this.height - MARGIN.top - MARGIN.bottom, width: 0, class: "brush" });
    const drawing = svg("svg", { viewBox: `0 0 ${this.drawnWidth} ${this.height}`, width: this.drawnWidth, height: this.height,
      tabindex: 0, role: "group", "aria-label": `${this.label}. Arrow keys move, Enter opens a layer, Escape shows all.` },
    ...this.paint(this), ...this.axis(), this.brush, this.cursorLine);
    this.listen(drawing);
    this.frame.replaceChildren(drawing);
    this.moveCursor();
  }

  axis() {
    const { from, to } = this.link;
    const base = this.height - MARGIN.bottom;
    const line = svg("line", { x1: MARGIN.left, x2: MARGIN.left + this.width, y1: base, y2: base, class: "axis" });
    return [line, ...ticks(from, to - 1, niceStep(to - from, Math.max(2, this.width / 90))).map((index) =>
      svg("text", { x: this.x(index), y: base + 15, class: "tick-text", "text-anchor": "middle" }, count(index)))];
  }

  indexAt(event) {
    const left = event.clientX - this.frame.getBoundingClientRect().left - MARGIN.left;
    return Math.floor(this.link.from + (left / this.width) * (this.link.to - this.link.from));
  }

  listen(drawing) {
    const { link } = this;
    drawing.addEventListener("pointermove", (event) => {
      link.point(this.indexAt(event));
      if (this.start !== undefined) this.drawBrush(this.start, link.cursor);
    });
    drawing.addEventListener("pointerleave", () => this.start === undefined && link.point(null));
    drawing.addEventListener("pointerdown", (event) => {
      this.start = Math.max(link.from, Math.min(link.to - 1, this.indexAt(event)));
      drawing.setPointerCapture(event.pointerId);
    });
    drawing.addEventListener("pointerup", () => {
      const start = this.start;
      this.start = undefined;
      if (start === undefined || link.cursor === null) return;
      if (Math.abs(this.x(start) - this.x(link.cursor)) < 6) link.open(link.layers[link.cursor]);
      else link.zoom(Math.min(start, link.cursor), Math.max(start, link.cursor) + 1);
    });
    drawing.addEventListener("keydown", (event) => this.key(event));
  }

  drawBrush(a, b) {
    const [left, right] = bounds([this.x(a), this.x(b)]);
    this.brush.setAttribute("x", left);
    this.brush.setAttribute("width", right - left);
  }

  key(event) {
    const { link } = this;
    const at = link.cursor ?? link.from;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity };
    if (event.key in steps) link.point(link.cursor === null ? at : at + steps[event.key]);
    else if (event.key === "Enter" && link.cursor !== null) link.open(link.layers[link.cursor]);
    else if (event.key === "Escape") link.zoom(0, link.layers.length);
    else return;
    event.preventDefault();
  }

  moveCursor() {
    const { cursor, layers } = this.link;
    const hidden = cursor === null || !this.cursorLine;
    this.tip.hidden = hidden;
    if (this.cursorLine) this.cursorLine.setAttribute("visibility", hidden ? "hidden" : "visible");
    if (hidden) return;
    const x = this.x(cursor);
    this.cursorLine.setAttribute("x1", x);
    this.cursorLine.setAttribute("x2", x);
    const layer = layers[cursor];
    const kind = `${printable(layer.op_type, 40)} ${formatLabel(layer.format)}`;
    const lines = [kind, ...this.say(layer)].map((line) => el("span", {}, line));
    this.tip.replaceChildren(el("b", {}, nameNode(layer.name, 60)), ...lines);
    const leftwards = x > this.drawnWidth / 2;
    this.tip.style.insetInlineStart = leftwards ? "auto" : `${x + 12}px`;
    this.tip.style.insetInlineEnd = leftwards ? `${this.drawnWidth - x + 12}px` : "auto";
  }
}

const sayErrors = (layer) => [
  `accumulated ${figure(layer.rel_l2_error)}`,
  `alone ${figure(localError(layer))}`,
  `expected ${figure(layer.expected_rel_l2)}`,
  ...(layer.misplaced_nonfinite ? [`${count(layer.misplaced_nonfinite)} NaN/inf misplaced`] : []),
];

const sayRange = ({ range, headroom_bits: bits }) => (range
  ? [`${number(range.absmin_nonzero)} … ${number(range.absmax)}`, `headroom ${signed(bits)} bits`]
  : ["not observed"]);

const legendItem = (kind, text) =>
  el("span", { class: "key" }, svg("svg", { width: 22, height: 10, viewBox: "0 0 22 10", "aria-hidden": "true" },
    kind === "local" ? svg("path", { d: "M4 5h0M11 5h0M18 5h0", class: kind })
      : kind.startsWith("bar-") ? svg("rect", { x: 4, y: 1, width: 14, height: 8, rx: 1, class: kind.slice(4) })
        : svg("line", { x1: 0, x2: 22, y1: 5, y2: 5, class: kind })), text);

/** A path through the largest figure of each group, broken where there is none. */
function linePath(groups, pick, y) {
  let [path, open] = ["", false];
  for (const { x, layers } of groups) {
    const worst = bounds(layers.map(pick).filter(isNumber))[1];
    if (worst === -Infinity) {
      open = false;
      continue;
    }
    path += `${open ? "L" : "M"}${x.toFixed(1)} ${y(worst > 0 ? Math.log10(worst) : -Infinity).toFixed(1)}`;
    open = true;
  }
  return path;
}

/** One dot per group; a layer that adds no error has none. */
function dotPath(groups, pick, y) {
  return groups.map(({ x, layers }) => [x, bounds(layers.map(pick).filter(positive))[1]]).filter(([, worst]) => worst > 0)
    .map(([x, worst]) => `M${x.toFixed(1)} ${y(Math.log10(worst)).toFixed(1)}h0`).join("");
}

function paintDepth(chart) {
  const { content } = chart.link;
  const [low, high] = content.decades;
  const y = logScale(low, high, chart.height - MARGIN.bottom, MARGIN.top);
  const { right } = chart;
  const grid = ticks(low, high, niceStep(high - low, 7)).flatMap((at) => [
    svg("line", { x1: MARGIN.left, x2: right, y1: y(at), y2: y(at), class: "grid" }),
    svg("text", { x: MARGIN.left - 8, y: y(at) + 4, class: "tick-text", "text-anchor": "end" }, `1e${at}`),
  ]);
  const groups = chart.groups();
  const lines = [["expected", (layer) => layer.expected_rel_l2], ["accumulated", (layer) => layer.rel_l2_error]]
    .map(([kind, pick]) => svg("path", { d: linePath(groups, pick, y), class: kind }));
  return [...grid, ...limitMark(chart, y), svg("path", { d: dotPath(groups, localError, y), class: "local" }), ...lines,
    ...abnormalBand(groups, chart.width / groups.length), ...firstMark(chart)];
}

/** The name of a line, right of the plot; inside it where there is no room. */
const edgeName = (chart, at, text) => (chart.roomy
  ? svg("text", { x: chart.right + 6, y: at + 4, class: "limit-text" }, text)
  : svg("text", { x: chart.right - 4, y: at - 4, class: "limit-text", "text-anchor": "end" }, text));

function limitMark(chart, y) {
  const { limit } = chart.link.content;
  if (!limit || !positive(limit.allowed)) return [];
  const at = y(Math.log10(limit.allowed));
  return [svg("line", { x1: MARGIN.left, x2: chart.right, y1: at, y2: at, class: "allowed" }),
    edgeName(chart, at, `output limit ${figure(limit.allowed)}`)];
}

/** A band above the plot where layers are abnormal; paler where every misplaced element is finite. */
function abnormalBand(groups, wide) {
  const kindOf = ({ layers }) => (layers.some((layer) => layer.misplaced_nonfinite > 0) ? "band"
    : layers.some((layer) => layer.status === "abnormal" || layer.status === "over limit") ? "band finite" : null);
  const runs = [];
  for (const group of groups) {
    const [kind, last] = [kindOf(group), runs.at(-1)];
    if (last && last.kind === kind) last.to = group.x;
    else runs.push({ kind, from: group.x, to: group.x });
  }
  return runs.filter((run) => run.kind).map(({ kind, from, to }) =>
    svg("rect", { x: from - wide / 2, y: MARGIN.top - 9, width: Math.max(2, to - from + wide), height: 5, class: kind }));
}

function firstMark(chart) {
  const { content, from, to } = chart.link;
  if (content.first === null || content.first < from || content.first >= to) return [];
  const x = chart.x(content.first);
  const end = x > MARGIN.left + chart.width / 3;
  return [svg("line", { x1: x, x2: x, y1: MARGIN.top - 4, y2: chart.height - MARGIN.bottom, class: "first" }),
    svg("text", { x: x + (end ? -6 : 6), y: MARGIN.top + 10, class: "limit-text", "text-anchor": end ? "end" : "start" },
      `first abnormal: ${printable(content.layers[content.first].name, 48)}`)];
}

function paintRanges(chart) {
  const { content } = chart.link;
  const [low, high] = content.octaves;
  const { right } = chart;
  const y = logScale(low, high, chart.height - MARGIN.bottom, MARGIN.top);
  const grid = ticks(low, high, 8).flatMap((at) => [
    svg("line", { x1: MARGIN.left, x2: right, y1: y(at), y2: y(at), class: "grid" }),
    svg("text", { x: MARGIN.left - 8, y: y(at) + 4, class: "tick-text", "text-anchor": "end" }, `2^${at}`)]);
  const zone = (from, to, kind) => svg("rect", {
    x: MARGIN.left, width: chart.width, y: y(to), height: Math.max(0, y(from) - y(to)), class: `zone ${kind}`,
  });
  const { narrow } = content;
  const zones = [zone(Math.log2(narrow.max), high, "over"), zone(Math.log2(narrow.subnormal), Math.log2(narrow.normal), "sub"),
    zone(low, Math.log2(narrow.subnormal), "under")];
  const groups = chart.groups();
  const wide = Math.max(1, Math.min(9, chart.width / groups.length - 1));
  const limits = limitLines(content).filter(({ at }) => at >= low && at <= high).flatMap(({ at, text, kind }) => [
    svg("line", { x1: MARGIN.left, x2: right, y1: y(at), y2: y(at), class: `edge ${kind}` }),
    edgeName(chart, y(at), text)]);
  return [...zones, ...grid, ...groups.map((group) => rangeColumn(group, y, wide, narrow)).filter(Boolean), ...limits];
}

/** One bar for a group of layers: from the smallest to the largest magnitude, coloured by the worst. */
function rangeColumn({ x, layers }, y, wide, narrow) {
  const ranges = layers.map((layer) => layer.range).filter((range) => range && positive(range.absmax));
  if (!ranges.length) return null;
  const large = bounds(ranges.map((range) => range.absmax))[1];
  const small = bounds(ranges.map((range) => (positive(range.absmin_nonzero) ? range.absmin_nonzero : range.absmax)))[0];
  const kinds = new Set(layers.map((layer) => rangeClass(layer, narrow)));
  const kind = ["beyond", "narrow", "wide"].find((one) => kinds.has(one));
  const upper = y(Math.log2(large));
  return svg("rect", { x: x - wide / 2, width: wide, y: upper, height: Math.max(1.5, y(Math.log2(small)) - upper), class: kind });
}
