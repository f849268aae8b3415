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

const NEIGHBOURS_SHOWN = 12;

/** Pairs of a term and what is shown for it. */
const record = (pairs) =>
  el("dl", { class: "record" }, ...pairs.map(([term, shown]) => el("div", {}, el("dt", {}, term), el("dd", {}, shown))));

class Drawer {
  constructor(content, reveal) {
    Object.assign(this, { content, reveal, box: byId("drawer") });
    this.box.setAttribute("aria-label", "Layer");
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.box.hidden && !(event.target instanceof SVGElement)) this.close();
    });
  }

  open(layer) {
    if (!this.box.contains(document.activeElement)) this.before = document.activeElement;
    this.box.replaceChildren(...this.parts(layer));
    this.box.hidden = false;
    this.box.scrollTop = 0;
    document.documentElement.classList.add("open");
    remember(`#layer-${layer.index}`);
    this.box.focus({ preventScroll: true });
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
    return [
      this.head(layer),
      el("h2", {}, nameNode(layer.name, 300)),
      el("p", {}, statusNode(layer.status), " ", this.sentence(layer)),
      this.names(layer),
      ...this.figures(layer),
      ...this.ranges(layer),
      ...this.decision(layer),
      ...this.neighbours("Reads from", layer.inputs),
      ...this.neighbours("Read by", layer.readers),
      ...this.snippet(layer),
    ];
  }

  head(layer) {
    const last = this.content.layers.length - 1;
    const step = (text, label, to) => button(text, () => this.go(to), { "aria-label": label, disabled: to < 0 || to > last });
    const format = el("span", { class: `format ${layer.format}` }, formatLabel(layer.format));
    return el("div", { class: "drawer-head" },
      el("span", { class: "kind" }, `${printable(layer.op_type, 60)} `, format),
      el("span", { class: "place" }, `${count(layer.index)} of ${count(last)}`),
      step("‹", "Layer before", layer.index - 1),
      step("›", "Layer after", layer.index + 1),
      button("✕", () => this.close(), { class: "close", "aria-label": "Close" }));
  }

  sentence(layer) {
    if (!isNumber(layer.rel_l2_error)) return "Nothing was compared here.";
    const parts = [`Relative L2 error ${figure(layer.rel_l2_error)}`];
    if (isNumber(layer.expected_rel_l2)) parts.push(`expected ${figure(layer.expected_rel_l2)}`);
    if (isNumber(localError(layer))) parts.push(`alone ${figure(localError(layer))}`);
    return `${parts.join(", ")}.`;
  }

  names(layer) {
    const known = [["Value", layer.value], ["Node", layer.node], ["Shape", layer.shape], ["Body", layer.scope],
      ["Source", layer.source]];
    return record(known.filter(([, text]) => text).map(([term, text]) => [term, nameNode(text, 300)]));
  }

  figures(layer) {
    const alone = layer.local || {};
    const known = FIGURE_ROWS.filter(([, key]) => !isBlank(layer[key]) || !isBlank(alone[key]));
    if (!known.length) return [];
    const cell = (text) => el("td", { class: "num" }, text);
    const rows = known.map(([title, key, show]) =>
      el("tr", {}, el("th", { scope: "row" }, title), cell(show(layer[key])), cell(show(alone[key]))));
    const heads = ["Figure", "Accumulated", "Alone"].map((title, n) => el("th", { scope: "col", class: n ? "num" : null }, title));
    const table = el("table", { class: "figures" }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows));
    return [el("h3", {}, "Figures"), table, layer.equal ? el("p", { class: "remark" }, "Equal to FP32 bit for bit.") : ""];
  }

  ranges(layer) {
    const { range } = layer;
    if (!range) return [];
    const facts = record([
      ["Smallest", number(range.min)],
      ["Largest", number(range.max)],
      ["Largest magnitude", number(range.absmax)],
      ["Smallest non-zero", number(range.absmin_nonzero)],
      ["Zeros", count(range.zeros)],
      ["NaN, +inf, -inf", [range.nan, range.posinf, range.neginf].map(count).join(", ")],
      ["Headroom", `${signed(layer.headroom_bits)} bits`],
      ["Only integers", range.integral ? "yes" : "no"],
    ]);
    return [el("h3", {}, "Range in FP32"), layer.exponents ? histogram(layer, this.content) : "", facts];
  }

  decision({ decision }) {
    if (!decision) return [];
    const rule = el("b", {}, `${formatLabel(decision.format)} by rule `);
    const said = el("p", {}, rule, nameNode(decision.rule), ": ", nameNode(decision.reason, 600), ".");
    if (!decision.evidence) return [el("h3", {}, "Decision"), said];
    const [value, seen, limit] = decision.evidence;
    const proof = el("p", { class: "remark" }, nameNode(value), ` reached ${number(seen)}; the limit is ${number(limit)}.`);
    return [el("h3", {}, "Decision"), said, proof];
  }

  /** Layers by number, or by name where they have no row. */
  neighbours(title, sources) {
    if (!sources.length) return [];
    const entries = sources.slice(0, NEIGHBOURS_SHOWN).map((source) => el("li", {}, ...this.neighbour(source)));
    const left = sources.length - NEIGHBOURS_SHOWN;
    if (left > 0) entries.push(el("li", {}, `and ${count(left)} more`));
    return [el("h3", {}, title), el("ul", { class: "neighbours" }, ...entries)];
  }

  neighbour(source) {
    if (!isNumber(source)) return [nameNode(source)];
    const { name, op_type: kind, format, rel_l2_error: error } = this.content.layers[source];
    const link = button(nameNode(name, 60), () => this.go(source), { class: "link" });
    return [link, ` ${printable(kind, 30)} ${formatLabel(format)} ${figure(error)}`];
  }

  snippet(layer) {
    const text = policySnippet(layer, this.content.narrow);
    const wanted = layer.format === "fp32" ? `make it ${this.content.narrow.label}` : "keep it FP32";
    const code = el("pre", { tabindex: 0 }, text);
    const copy = button("Copy", async () => {
      try {
        await navigator.clipboard.writeText(text);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        copy.textContent = "Selected";
      }
    });
    return [el("h3", {}, `Policy line to ${wanted}`), el("div", { class: "snippet" }, code, copy)];
  }
}
