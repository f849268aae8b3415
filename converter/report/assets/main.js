// Puts the parts together once the payload is unpacked.

function buildLayers(content, open) {
  const columns = layerColumns(content);
  const table = new VirtualTable({ label: "Layers", columns, rows: content.layers, open, sort: { key: "index", direction: 1 } });
  const states = Object.entries(layerStates(content));
  const choosers = [
    chooser("Any state", states.map(([text, test]) => ({ text, test, amount: content.layers.filter(test).length }))),
    chooser("Any operator", choicesOf(content.layers, "op_type")),
    chooser("Any format", choicesOf(content.layers, "format", formatLabel)),
  ];
  const save = button("Save as CSV", () => download("layers.csv", "text/csv", csvText(columns, table.shown)));
  const fields = (row) => [row.name, row.value, row.op_type, row.source, wideReason(row)];
  const tools = toolbar({ table, noun: "layers", fields, choosers, extra: [save] });
  byId("layer-table").append(tools.bar, table.box);
  return { table, tools };
}

function buildDecisions(content, open) {
  const layerOf = new Map(content.layers.map((layer) => [layer.node, layer]));
  const show = (row) => layerOf.has(row.node) && open(layerOf.get(row.node));
  const table = new VirtualTable({ label: "Decisions", columns: decisionColumns(), rows: content.decisions, open: show });
  const choosers = [
    chooser("Any rule", choicesOf(content.decisions, "rule")),
    chooser("Any format", choicesOf(content.decisions, "format", formatLabel)),
  ];
  const fields = (row) => [row.node, row.op_type, row.rule, row.reason];
  const tools = toolbar({ table, noun: "decisions", fields, choosers });
  byId("decision-table").append(tools.bar, table.box);
}

function buildCharts(content, open, zoomed) {
  const link = new ChartLink(content, open, zoomed);
  new LayerChart(link, {
    mount: byId("depth-chart"),
    height: 260,
    label: "Relative L2 error of each layer on a logarithmic axis",
    paint: paintDepth,
    say: sayErrors,
    legend: [legendItem("accumulated", "accumulated"), legendItem("local", "alone, on FP32 inputs"),
      legendItem("expected", "expected"), legendItem("bar-band", "abnormal")],
  });
  new LayerChart(link, {
    mount: byId("ranges-chart"),
    height: 240,
    label: "Range of each layer in powers of two",
    paint: paintRanges,
    say: sayRange,
    legend: [legendItem("bar-narrow", "narrow"), legendItem("bar-wide", "FP32"),
      legendItem("bar-beyond", `beyond ${content.narrow.label}`)],
  });
  link.charts.forEach((chart) => chart.render());
}

/** Names of layers in the static part open the drawer too. */
function linkNames(content, open) {
  const layerOf = new Map();
  for (const layer of content.layers) {
    for (const text of [layer.value, layer.node]) for (const limit of [60, 200]) if (text) layerOf.set(printable(text, limit), layer);
  }
  const places = ["verdict dl", "verdict table", "outputs", "first-abnormal", "clamps", "constants-changed"];
  for (const shown of document.querySelectorAll(places.map((place) => `#${place} .name`).join())) {
    const layer = layerOf.get(shown.textContent);
    if (layer) shown.replaceWith(button(shown.textContent, () => open(layer), { class: "link name" }));
  }
}

/** What the drawing needs to know of all layers at once. */
function measure(content) {
  const errors = content.layers.flatMap((layer) => [layer.rel_l2_error, localError(layer), layer.expected_rel_l2]);
  content.decades = decades(content.limit ? [...errors, content.limit.allowed] : errors);
  content.octaves = octaves(content.layers);
}

function build(content) {
  let layers = null;
  const reveal = (layer) => layers.table.reveal(layer) || (layers.tools.reset(), layers.table.reveal(layer));
  const drawer = new Drawer(content, reveal);
  const open = (layer) => {
    reveal(layer);
    drawer.open(layer);
  };
  if (content.layers.length) {
    layers = buildLayers(content, (layer) => drawer.open(layer));
    buildCharts(content, open, (range) => layers.tools.limitTo(range));
    linkNames(content, open);
  } else for (const id of ["depth", "ranges"]) byId(id).hidden = true;
  if (content.decisions.length) buildDecisions(content, open);
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || !layers || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    event.preventDefault();
    layers.tools.search.focus();
  });
  const wanted = /^#layer-(\d+)$/.exec(location.hash);
  if (wanted && content.layers[Number(wanted[1])]) open(content.layers[Number(wanted[1])]);
}

async function main() {
  const root = document.documentElement;
  addEventListener("error", (event) => root.setAttribute("data-error", event.message));
  const content = await readPayload();
  measure(content);
  root.classList.add("ready");
  build(content);
  root.setAttribute("data-ready", content.layers.length);
}

main().catch((error) => {
  document.documentElement.setAttribute("data-error", String(error));
  console.error(error);
});
