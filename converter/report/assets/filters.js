// What narrows a table down: a search box, lists to choose from, the number of rows left.

/** Text as typed, or a regular expression between slashes; null when that is broken. */
function matcher(typed) {
  const pattern = /^\/(.+)\/(i?)$/.exec(typed);
  if (!pattern) {
    const wanted = typed.toLowerCase();
    return (text) => text.toLowerCase().includes(wanted);
  }
  try {
    const expression = new RegExp(pattern[1], "i");
    return (text) => expression.test(text);
  } catch {
    return null;
  }
}

/** A list to choose from, with how many rows each choice keeps; `choices` are {text, amount, test(row)}. */
function chooser(label, choices) {
  const shown = ({ text, amount }) => `${printable(text, 40)} (${count(amount)})`;
  const options = choices.map((choice, n) => el("option", { value: n }, shown(choice)));
  const select = el("select", { "aria-label": label }, el("option", { value: "" }, label), ...options);
  return { select, test: (row) => select.value === "" || choices[select.value].test(row) };
}

/** A choice for each value that a column has, the most frequent first. */
function choicesOf(rows, key, show = (text) => text) {
  const counts = new Map();
  for (const row of rows) counts.set(row[key], (counts.get(row[key]) || 0) + 1);
  const ordered = [...counts].sort((a, b) => b[1] - a[1]);
  return ordered.map(([value, amount]) => ({ text: show(value), amount, test: (row) => row[key] === value }));
}

/** `fields(row)` gives the texts that are searched; `choosers` narrow the rows further. */
function toolbar({ table, noun, fields, choosers, extra = [] }) {
  const search = el("input", { type: "search", placeholder: "Filter by name, operator, module, reason or /regex/",
    "aria-label": `Filter ${noun}`, spellcheck: "false", autocomplete: "off" });
  const left = el("output", { class: "left" });
  const state = { range: null };
  const update = () => {
    const match = search.value.trim() ? matcher(search.value.trim()) : () => true;
    search.setAttribute("aria-invalid", String(match === null));
    const tests = choosers.filter(({ select }) => select.value).map(({ test }) => test);
    if (state.range) tests.push((row) => row.index >= state.range[0] && row.index < state.range[1]);
    const all = !search.value.trim() || !match;
    table.filter((row) => tests.every((test) => test(row)) && (all || fields(row).some((text) => match(text))));
    left.replaceChildren(`${count(table.shown.length)} of ${count(table.rows.length)} ${noun}`);
  };
  search.addEventListener("input", update);
  for (const { select } of choosers) select.addEventListener("change", update);
  const clear = button("Clear", () => reset());
  const reset = () => {
    search.value = "";
    for (const { select } of choosers) select.value = "";
    state.range = null;
    update();
  };
  const selects = choosers.map(({ select }) => select);
  const bar = el("div", { class: "toolbar", role: "search" }, search, ...selects, clear, ...extra, left);
  update();
  return { bar, search, reset, update, limitTo: (range) => { state.range = range; update(); } };
}

/** A cell for a spreadsheet: quoted where needed, and text that looks like a formula gets a quote in front. */
function csvCell(value) {
  const text = typeof value === "string" && /^[=+\-@\t\r\n＝＋－＠]/.test(value) ? `'${value}` : String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const csvText = (columns, rows) =>
  [columns.map((column) => column.title), ...rows.map((row) => columns.map((column) => column.value(row)))]
    .map((cells) => cells.map(csvCell).join(",")).join("\r\n") + "\r\n";
