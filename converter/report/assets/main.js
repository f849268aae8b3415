// Puts the parts together once the payload is unpacked.

const nonfiniteText = (layer) => {
  const found = [layer.reference_nonfinite, layer.value_nonfinite, layer.misplaced_nonfinite];
  return found.some((amount) => amount > 0) ? found.map(count).join(" / ") : count(layer.misplaced_nonfinite);
};

function layerColumns(content) {
  const text = (key, title, width, value, limit = 80) => ({ key, title, width, value, show: (row) => nameNode(String(value(row)), limit) });
  const numeric = (key, title, width, value, show, tip) => ({ key, title, width, tip, value, number: true, show: (row) => show(value(row), row) });
  const plain = (key) => (row) => row[key];
  return [
    text("name", "Layer", 270, plain("name")),
    { ...numeric("index", "№", 52, plain("index"), count, "Place in the order of execution"), largestFirst: false },
    text("op_type", "Operator", 150, plain("op_type"), 30),
    { ...text("format", "Format", 72, plain("format")), show: (row) => el("span", { class: `format ${row.format}` }, formatLabel(row.format)) },
    text("shape", "Shape", 112, plain("shape")),
    numeric("rel", "rel L2", 78, plain("rel_l2_error"), figure, "Accumulated: in the run of the whole mixed model"),
    numeric("local", "Alone", 78, localError, figure, "Local: this node alone, on FP32 inputs"),
    numeric("expected", "Expected", 86, plain("expected_rel_l2"), figure, "What the rounding model expects here"),
    numeric("abs", "Max abs", 82, plain("max_abs_error"), figure),
    numeric("cosine", "Cosine", 86, plain("cosine_similarity"), (value) => fixed(value, 6)),
    numeric("sqnr", "SQNR dB", 92, plain("sqnr_db"), (value, row) => (row.equal ? "equal" : fixed(value, 1))),
    numeric("saturated", "Saturated", 94, plain("saturated"), count, "Elements at the format's largest number"),
    numeric("flushed", "Flushed", 82, plain("flushed"), count, "Non-zero elements that became zero"),
    numeric("nonfinite", "NaN/inf", 104, plain("misplaced_nonfinite"), (value, row) => nonfiniteText(row), "In FP32 / here / misplaced; sorted by misplaced"),
    { key: "range", title: "Range", width: 138, tip: "Smallest non-zero to largest magnitude; ticks: smallest normal and largest number", value: (row) => (row.range ? row.range.absmax : null),
      show: (row) => rangeBar(row, content), largestFirst: true },
    { ...numeric("headroom", "Headroom", 96, plain("headroom_bits"), signed, "Bits between the largest magnitude and the format's largest number"), largestFirst: false },
    { ...text("status", "Status", 122, plain("status")), show: (row) => statusNode(row.status) },
    text("reason", "Why FP32", 300, wideReason, 120),
  ];
}

function layerTests(content) {
  const states = {
    abnormal: (row) => row.status === "abnormal" || row.status === "over limit",
    "over limit": (row) => row.status === "over limit",
    "NaN or infinity misplaced": (row) => row.misplaced_nonfinite > 0,
    saturated: (row) => row.saturated > 0,
    flushed: (row) => row.flushed > 0,
    [`beyond ${content.narrow.label}`]: (row) => row.headroom_bits < 0 || (row.range && row.range.absmax > content.narrow.max),
    "not run": (row) => row.status === "not run",
  };
  const present = Object.entries(states).map(([value, test]) => ({ value, text: `${value} (${count(content.layers.filter(test).length)})` }));
  return { states, present };
}

function buildLayers(content, open) {
  const columns = layerColumns(content);
  const table = new VirtualTable({ label: "Layers", columns, rows: content.layers, open, sort: { key: "index", direction: 1 } });
  const { states, present } = layerTests(content);
  const choosers = [
    { select: chooser("Any state", present), test: (row, state) => states[state](row) },
    { select: chooser("Any operator", countedChoices(content.layers, "op_type")), test: (row, kind) => row.op_type === kind },
    { select: chooser("Any format", countedChoices(content.layers, "format", formatLabel)), test: (row, format) => row.format === format },
  ];
  const save = el("button", { type: "button", onclick: () => download("layers.csv", "text/csv", csvText(columns, table.shown)) }, "Save as CSV");
  const fields = (row) => [row.name, row.value, row.op_type, row.source, wideReason(row)];
  const tools = toolbar({ table, noun: "layers", fields, choosers, extra: [save] });
  byId("layer-table").append(tools.bar, table.box);
  return { table, tools };
}

function buildDecisions(content, open) {
  const named = (key, title, width, limit) => ({ key, title, width, value: (row) => row[key], show: (row) => nameNode(row[key], limit) });
  const evidence = (place, key, title) => ({ key, title, width: 110, number: true, value: (row) => (row.evidence ? row.evidence[place] : null), show: (row) => number(row.evidence ? row.evidence[place] : null) });
  const columns = [
    named("node", "Node", 300, 80), named("op_type", "Operator", 140, 40),
    { ...named("format", "Format", 70), show: (row) => el("span", { class: `format ${row.format}` }, formatLabel(row.format)) },
    named("rule", "Rule", 150, 60), named("reason", "Reason", 420, 200), evidence(1, "seen", "Seen"), evidence(2, "limit", "Limit"),
  ];
  const layerOf = new Map(content.layers.map((layer) => [layer.node, layer]));
  const show = (row) => layerOf.has(row.node) && open(layerOf.get(row.node));
  const table = new VirtualTable({ label: "Decisions", columns, rows: content.decisions, open: show });
  const choosers = [
    { select: chooser("Any rule", countedChoices(content.decisions, "rule")), test: (row, rule) => row.rule === rule },
    { select: chooser("Any format", countedChoices(content.decisions, "format", formatLabel)), test: (row, format) => row.format === format },
  ];
  const tools = toolbar({ table, noun: "decisions", fields: (row) => [row.node, row.op_type, row.rule, row.reason], choosers });
  byId("decision-table").append(tools.bar, table.box);
}

function buildCharts(content, open, zoomed) {
  const link = new ChartLink(content, open, zoomed);
  new LayerChart(link, {
    mount: byId("depth-chart"), height: 260, label: "Relative L2 error of each layer on a logarithmic axis", paint: paintDepth,
    say: (layer) => [`accumulated ${figure(layer.rel_l2_error)}`, `alone ${figure(localError(layer))}`, `expected ${figure(layer.expected_rel_l2)}`,
      ...(layer.misplaced_nonfinite ? [`${count(layer.misplaced_nonfinite)} NaN/inf misplaced`] : [])],
    legend: [legendItem("accumulated", "accumulated"), legendItem("local", "alone, on FP32 inputs"), legendItem("expected", "expected"), legendItem("bar-band", "abnormal")],
  });
  new LayerChart(link, {
    mount: byId("ranges-chart"), height: 240, label: "Range of each layer in powers of two", paint: paintRanges,
    say: (layer) => (layer.range ? [`${number(layer.range.absmin_nonzero)} … ${number(layer.range.absmax)}`, `headroom ${signed(layer.headroom_bits)} bits`] : ["not observed"]),
    legend: [legendItem("bar-narrow", "narrow"), legendItem("bar-wide", "FP32"), legendItem("bar-beyond", `beyond ${content.narrow.label}`)],
  });
  link.charts.forEach((chart) => chart.render());
}

async function main() {
  const root = document.documentElement;
  addEventListener("error", (event) => root.setAttribute("data-error", event.message));
  const content = await readPayload();
  content.octaves = octaves(content.layers);
  content.decades = decades(content.layers.flatMap((layer) => [layer.rel_l2_error, localError(layer), layer.expected_rel_l2]).concat(content.limit ? content.limit.allowed : []));
  root.classList.add("ready");
  let layers = null;
  const reveal = (layer) => layers.table.reveal(layer) || (layers.tools.reset(), layers.table.reveal(layer));
  const drawer = new Drawer(content, reveal);
  const open = (layer) => drawer.open(layer);
  const openAndReveal = (layer) => { reveal(layer); drawer.open(layer); };
  if (content.layers.length) {
    layers = buildLayers(content, open);
    buildCharts(content, openAndReveal, (range) => layers.tools.limitTo(range));
  } else for (const id of ["depth", "ranges"]) byId(id).hidden = true;
  if (content.decisions.length) buildDecisions(content, layers ? openAndReveal : () => {});
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || !layers || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    event.preventDefault();
    layers.tools.search.focus();
  });
  const wanted = /^#layer-(\d+)$/.exec(location.hash);
  if (wanted && content.layers[Number(wanted[1])]) openAndReveal(content.layers[Number(wanted[1])]);
  root.setAttribute("data-ready", content.layers.length);
}

main().catch((error) => document.documentElement.setAttribute("data-error", String(error)));
