// Everything known of one layer, beside the page.

const FIGURE_ROWS = [
  ["rel L2 error", "rel_l2_error", figure],
  ["max abs error", "max_abs_error", figure],
  ["max rel error", "max_rel_error", figure],
  ["max ULP error", "max_ulp_error", number],
  ["cosine similarity", "cosine_similarity", (value) => fixed(value, 8)],
  ["SQNR", "sqnr_db", (value) => fixed(value, 2, " dB")],
  ["worst row, rel L2", "worst_row_rel_l2", figure],
  ["top-1 agreement", "top1_agreement", percent],
  ["largest magnitude", "absmax", number],
  ["saturated", "saturated", count],
  ["flushed to zero", "flushed", count],
  ["NaN/inf in FP32", "reference_nonfinite", count],
  ["NaN/inf here", "value_nonfinite", count],
  ["NaN/inf misplaced", "misplaced_nonfinite", count],
  ["elements", "count", count],
];

class Drawer {
  constructor(content, reveal) {
    Object.assign(this, { content, reveal, box: byId("drawer") });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.box.hidden && !(event.target instanceof SVGElement)) this.close();
    });
  }

  open(layer, { focus = true } = {}) {
    if (!this.box.contains(document.activeElement)) this.before = document.activeElement;
    this.layer = layer;
    this.box.replaceChildren(...this.parts(layer));
    this.box.hidden = false;
    this.box.scrollTop = 0;
    document.documentElement.classList.add("open");
    remember(`#layer-${layer.index}`);
    if (focus) this.box.focus({ preventScroll: true });
  }

  close() {
    this.box.hidden = true;
    document.documentElement.classList.remove("open");
    remember("");
    if (this.before && this.before.isConnected) this.before.focus({ preventScroll: true });
  }

  go(index) {
    const layer = this.content.layers[index];
    this.reveal(layer);
    this.open(layer);
  }

  parts(layer) {
    const last = this.content.layers.length - 1;
    const step = (text, label, to) => el("button", { type: "button", "aria-label": label, disabled: to < 0 || to > last, onclick: () => this.go(to) }, text);
    return [
      el("div", { class: "drawer-head" }, el("span", { class: "kind" }, `${printable(layer.op_type, 60)} `, el("span", { class: `format ${layer.format}` }, formatLabel(layer.format))),
        el("span", { class: "place" }, `${count(layer.index)} of ${count(last)}`), step("‹", "Layer before", layer.index - 1), step("›", "Layer after", layer.index + 1),
        el("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => this.close() }, "✕")),
      el("h2", {}, nameNode(layer.name, 300)),
      el("p", {}, statusNode(layer.status), " ", this.sentence(layer)),
      ...this.names(layer), ...this.figures(layer), ...this.ranges(layer), ...this.decision(layer), ...this.neighbours(layer), ...this.snippet(layer),
    ];
  }

  sentence(layer) {
    if (!isNumber(layer.rel_l2_error)) return "Nothing was compared here.";
    const parts = [`Relative L2 error ${figure(layer.rel_l2_error)}`];
    if (isNumber(layer.expected_rel_l2)) parts.push(`expected ${figure(layer.expected_rel_l2)}`);
    if (isNumber(localError(layer))) parts.push(`alone ${figure(localError(layer))}`);
    return `${parts.join(", ")}.`;
  }

  names(layer) {
    const rows = [["Value", layer.value], ["Node", layer.node], ["Shape", layer.shape], ["Body", layer.scope], ["Source", layer.source]];
    return [el("dl", { class: "record" }, ...rows.filter(([, text]) => text).map(([term, text]) =>
      el("div", {}, el("dt", {}, term), el("dd", {}, nameNode(text, 300)))))];
  }

  figures(layer) {
    const alone = layer.local || {};
    const known = FIGURE_ROWS.filter(([, key]) => !isBlank(layer[key]) || !isBlank(alone[key]));
    if (!known.length) return [];
    const rows = known.map(([title, key, show]) =>
      el("tr", {}, el("th", { scope: "row" }, title), el("td", { class: "num" }, show(layer[key])), el("td", { class: "num" }, show(alone[key]))));
    const heads = ["Figure", "Accumulated", "Alone"].map((title, n) => el("th", { scope: "col", class: n ? "num" : null }, title));
    const same = layer.equal ? [el("p", { class: "remark" }, "Equal to FP32 bit for bit.")] : [];
    return [el("h3", {}, "Figures"), el("table", { class: "figures" }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows)), ...same];
  }

  ranges(layer) {
    const { range } = layer;
    if (!range) return [];
    const facts = [["Smallest", number(range.min)], ["Largest", number(range.max)], ["Largest magnitude", number(range.absmax)],
      ["Smallest non-zero", number(range.absmin_nonzero)], ["Zeros", count(range.zeros)],
      ["NaN, +inf, −inf", [range.nan, range.posinf, range.neginf].map(count).join(", ")],
      ["Headroom", `${signed(layer.headroom_bits)} bits`], ["Only integers", range.integral ? "yes" : "no"]];
    const drawn = layer.exponents ? [histogram(layer, this.content)] : [];
    return [el("h3", {}, "Range in FP32"), ...drawn, el("dl", { class: "record" }, ...facts.map(([term, text]) =>
      el("div", {}, el("dt", {}, term), el("dd", { class: "num" }, text))))];
  }

  decision({ decision }) {
    if (!decision) return [];
    const lines = [el("p", {}, el("b", {}, `${formatLabel(decision.format)} by rule `), nameNode(decision.rule), ": ", nameNode(decision.reason, 600), ".")];
    if (decision.evidence) {
      const [value, seen, limit] = decision.evidence;
      lines.push(el("p", { class: "remark" }, nameNode(value), ` reached ${number(seen)}; the limit is ${number(limit)}.`));
    }
    return [el("h3", {}, "Decision"), ...lines];
  }

  neighbours(layer) {
    const link = (source) => {
      if (!isNumber(source)) return el("li", {}, nameNode(source));
      const other = this.content.layers[source];
      return el("li", {}, el("button", { type: "button", class: "link", onclick: () => this.go(source) }, nameNode(other.name, 60)),
        ` ${printable(other.op_type, 30)} ${formatLabel(other.format)} ${figure(other.rel_l2_error)}`);
    };
    const list = (title, entries) => (entries.length
      ? [el("h3", {}, title), el("ul", { class: "neighbours" }, ...entries.slice(0, 12).map(link), entries.length > 12 ? el("li", {}, `and ${count(entries.length - 12)} more`) : null)]
      : []);
    return [...list("Reads from", layer.inputs), ...list("Read by", layer.readers)];
  }

  snippet(layer) {
    const text = policySnippet(layer, this.content.narrow);
    const wanted = layer.format === "fp32" ? `make it ${this.content.narrow.label}` : "keep it FP32";
    const code = el("pre", { tabindex: 0 }, text);
    const copy = el("button", { type: "button", onclick: async () => {
      try {
        await navigator.clipboard.writeText(text);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        copy.textContent = "Selected";
      }
    } }, "Copy");
    return [el("h3", {}, `Policy line to ${wanted}`), el("div", { class: "snippet" }, code, copy)];
  }
}
