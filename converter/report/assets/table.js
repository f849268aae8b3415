// A table that draws only the rows in sight: sorted by its heads, walked with the keyboard.

const ROW_HEIGHT = 26;
const SPARE_ROWS = 10;

const compareCells = (a, b) => {
  const [left, right] = [isNumber(a) || (typeof a === "string" && a !== ""), isNumber(b) || (typeof b === "string" && b !== "")];
  if (!left || !right) return 0;
  return isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
};

const isBlank = (value) => value === null || value === undefined || value === "";

class VirtualTable {
  /** `columns`: {key, title, value(row), show(row), width, number, largestFirst, tip}; `open(row)` is called for a chosen row. */
  constructor({ label, columns, rows, open, sort }) {
    Object.assign(this, { label, columns, rows, open, shown: rows, active: 0, sort });
    this.body = el("tbody");
    this.heads = columns.map((column) => this.makeHead(column));
    const groups = el("colgroup", {}, ...columns.map((column) => this.makeWidth(column)));
    this.table = el("table", { class: "virtual", "aria-label": label }, groups,
      el("thead", {}, el("tr", {}, ...this.heads)), this.body);
    this.box = el("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": label,
      onscroll: () => this.later(), onkeydown: (event) => this.key(event) }, this.table);
    this.table.style.width = `${columns.reduce((sum, column) => sum + column.width, 0)}px`;
    new ResizeObserver(() => this.later()).observe(this.box);
    this.apply();
  }

  makeWidth(column) {
    const col = el("col");
    col.style.width = `${column.width}px`;
    return col;
  }

  makeHead(column) {
    const button = el("button", { type: "button", onclick: () => this.sortBy(column.key) }, column.title);
    return el("th", { scope: "col", class: column.number ? "num" : null, title: column.tip || null }, button);
  }

  /** The first click on a figure shows the largest first unless the column says otherwise; blanks always come last. */
  sortBy(key) {
    const column = this.columns.find((one) => one.key === key);
    const usual = column.largestFirst ?? column.number ? -1 : 1;
    const direction = this.sort && this.sort.key === key ? -this.sort.direction : usual;
    this.sort = { key, direction };
    this.active = 0;
    this.box.scrollTop = 0;
    this.apply();
  }

  filter(keep) {
    this.keep = keep;
    this.active = 0;
    this.box.scrollTop = 0;
    this.apply();
  }

  apply() {
    const rows = this.keep ? this.rows.filter(this.keep) : [...this.rows];
    const column = this.sort && this.columns.find((one) => one.key === this.sort.key);
    if (column) {
      const { direction } = this.sort;
      const keys = new Map(rows.map((row) => [row, column.value(row)]));
      rows.sort((a, b) => {
        const [left, right] = [keys.get(a), keys.get(b)];
        return isBlank(left) - isBlank(right) || direction * compareCells(left, right);
      });
    }
    this.shown = rows;
    this.columns.forEach((one, n) => {
      const sorted = column === one ? (this.sort.direction > 0 ? "ascending" : "descending") : null;
      if (sorted) this.heads[n].setAttribute("aria-sort", sorted);
      else this.heads[n].removeAttribute("aria-sort");
    });
    this.table.setAttribute("aria-rowcount", rows.length + 1);
    this.draw();
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const height = this.box.clientHeight || 600;
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW_HEIGHT) - SPARE_ROWS);
    const last = Math.min(this.shown.length, first + Math.ceil(height / ROW_HEIGHT) + 2 * SPARE_ROWS);
    const hadFocus = this.body.contains(document.activeElement);
    const rows = this.shown.slice(first, last).map((row, n) => this.drawRow(row, first + n));
    if (!rows.length) rows.push(el("tr", {}, el("td", { colspan: this.columns.length, class: "none" }, "Nothing matches.")));
    this.body.replaceChildren(this.spacer(first), ...rows, this.spacer(this.shown.length - last));
    if (hadFocus) (this.body.querySelector('[tabindex="0"]') || this.box).focus({ preventScroll: true });
  }

  spacer(rows) {
    const row = el("tr", { "aria-hidden": "true", class: "spacer" });
    row.style.height = `${Math.max(0, rows) * ROW_HEIGHT}px`;
    return row;
  }

  drawRow(row, place) {
    const cells = this.columns.map((column, n) =>
      el(n ? "td" : "th", { class: column.number ? "num" : null, scope: n ? null : "row" }, column.show(row)));
    const picked = place === this.active;
    return el("tr", { tabindex: picked ? 0 : -1, "aria-rowindex": place + 2, class: row === this.chosen ? "chosen" : null,
      onclick: () => this.choose(place) }, ...cells);
  }

  choose(place) {
    this.active = place;
    this.chosen = this.shown[place];
    this.draw();
    if (this.open) this.open(this.chosen);
  }

  /** Scrolls a row into sight and marks it; false when the filter hides it. */
  reveal(row) {
    this.chosen = row;
    const place = this.shown.indexOf(row);
    if (place >= 0) {
      this.active = place;
      this.scrollTo(place, true);
    }
    this.draw();
    return place >= 0;
  }

  scrollTo(place, centre = false) {
    const height = this.box.clientHeight - ROW_HEIGHT;
    const top = place * ROW_HEIGHT;
    if (top < this.box.scrollTop || top > this.box.scrollTop + height - ROW_HEIGHT) {
      this.box.scrollTop = centre ? top - height / 2 : top < this.box.scrollTop ? top : top - height + ROW_HEIGHT;
    }
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW_HEIGHT) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.target.tagName === "BUTTON" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") {
      if (this.shown.length) this.choose(this.active);
    } else if (event.key in steps) {
      this.active = Math.max(0, Math.min(this.shown.length - 1, this.active + steps[event.key]));
      this.scrollTo(this.active);
      this.draw();
      const row = this.body.querySelector('[tabindex="0"]');
      if (row) row.focus({ preventScroll: true });
    } else return;
    event.preventDefault();
  }
}
