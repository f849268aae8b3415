// The compressed payload, unpacked into plain objects.

async function readPayload() {
  const packed = Uint8Array.from(atob(byId("payload").textContent.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return unpack(JSON.parse(await new Response(stream).text()));
}

const keyed = (names, row) => (row === null ? null : Object.fromEntries(names.map((name, n) => [name, row[n]])));

/** Rows get names; each layer also learns its number, its decision and who reads it. */
function unpack(content) {
  const { fields } = content;
  const decisions = content.decisions.map((row) => keyed(fields.decision, row));
  const decisionOf = new Map(decisions.map((decision) => [decision.node, decision]));
  const layers = content.layers.map((row, index) => {
    const layer = keyed(fields.layer, row);
    Object.assign(layer, keyed(fields.figures, layer.figures), {
      index,
      name: layer.node || layer.value,
      local: keyed(fields.figures, layer.local),
      range: keyed(fields.range, layer.range),
      decision: decisionOf.get(layer.node) || null,
      readers: [],
    });
    return layer;
  });
  for (const layer of layers) {
    for (const source of layer.inputs) if (isNumber(source)) layers[source].readers.push(layer.index);
  }
  const narrow = content.formats.find((format) => format.name === content.to) || content.formats[0];
  return { ...content, decisions, layers, narrow };
}

/** The error a node makes alone, on FP32 inputs. */
const localError = (layer) => (layer.local ? layer.local.rel_l2_error : null);

/** Why a node is FP32; nothing for a narrow one. */
const wideReason = (layer) =>
  layer.decision && layer.decision.format === "fp32" ? `${layer.decision.rule}: ${layer.decision.reason}` : "";

/** One line of a policy file that changes the layer's format; patterns are shell patterns, so names are escaped. */
function policySnippet(layer, narrow) {
  const key = layer.node ? "node" : "value";
  const pattern = layer.name.replace(/[*?[]/g, "[$&]").replace("…", "*");
  const format = layer.format === "fp32" ? narrow.name : "fp32";
  const text = JSON.stringify({ [key]: pattern, format });
  const escape = (character) =>
    [...Array(character.length).keys()].map((n) => `\\u${character.charCodeAt(n).toString(16).padStart(4, "0")}`).join("");
  return text.replace(/","/, '", "').replaceAll('":"', '": "').replace(UNPRINTABLE, escape);
}
