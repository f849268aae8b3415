// Elements from text: strings become text nodes, never markup.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG_NAMESPACE, name), attributes, children);

/** A string of the model: printable, isolated from the text around it, whole in the tool tip. */
function nameNode(text, limit = 160) {
  const shown = printable(text, limit);
  return el("bdi", { class: "name", title: shown.length > 24 ? printable(text, 600) : null }, shown);
}

const button = (text, press, attributes = {}) => el("button", { type: "button", onclick: press, ...attributes }, text);

const byId = (id) => document.getElementById(id);

/** Leaves an address behind that opens the same layer again, without filling the history. */
function remember(hash) {
  try {
    history.replaceState(null, "", hash || location.pathname + location.search);
  } catch {
    // A sandboxed page has no address to change.
  }
}

function download(name, type, text) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
