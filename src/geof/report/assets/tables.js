// Tables: plain ones, sortable ones, and those with the paper's number beside ours.

function table(caption, headings, rows, attributes) {
  return html("table", attributes || {},
    caption ? html("caption", {}, caption) : null,
    html("thead", {}, html("tr", {}, headings.map((text) => html("th", { scope: "col" }, text)))),
    html("tbody", {}, rows.map((cells) => html("tr", {}, cells.map((cell, i) =>
      i === 0 ? html("th", { scope: "row" }, cell) : html("td", {}, cell))))));
}

function meanAndDeviation(mean, deviation, digits = 2) {
  if (mean === null || mean === undefined) return "–";
  // A number too small for so many decimals, such as a p-value, keeps three digits.
  const tiny = mean !== 0 && Math.abs(mean) < 10 ** (1 - digits);
  const text = tiny ? compact(+mean.toPrecision(3)) : mean.toFixed(digits).replace("-", "−");
  return deviation === null || deviation === undefined
    ? text : `${text} ± ${tiny ? compact(+deviation.toPrecision(2)) : deviation.toFixed(digits)}`;
}

/** One cell of a comparison: ours, on how many splits, the paper's, a mark, a remark. */
function comparedCell(cell) {
  const partial = cell.of && cell.count && cell.count < cell.of;
  return html("td", { class: cell.marked ? "compared marked" : "compared" },
    html("span", { class: cell.mean === null ? "ours none" : "ours" },
      cell.mean !== null ? meanAndDeviation(cell.mean, cell.deviation) : cell.note ? "–" : "not run",
      cell.marked ? html("abbr", { title: "further from the paper than the deviations explain" }, " ≠")
        : null),
    partial ? html("span", { class: "note" }, `${cell.count} of ${cell.of}`) : null,
    cell.paper === null || cell.paper === undefined ? null
      : html("span", { class: "paper" },
        `paper ${meanAndDeviation(cell.paper, cell.paper_deviation, 1)}`),
    cell.note ? html("span", { class: "note" }, named(cell.note)) : null);
}

function comparedTable(data) {
  return scrolling(data.title || "Table", html("table", { class: "comparison" },
    html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "\u00a0"),
      data.columns.map((name) => html("th", { scope: "col" }, named(name))))),
    html("tbody", {}, data.rows.map((row) => html("tr", {},
      html("th", { scope: "row" }, named(row.label)), row.cells.map(comparedCell))))));
}

/**
 * A table whose headings sort it.
 * columns: [{title, value(row), cell(row)}]; values are numbers, texts or null, which come last.
 */
class SortableTable {
  constructor(label, columns, rows, detail) {
    Object.assign(this, { columns, rows, detail, sorted: null, descending: false });
    this.body = html("tbody");
    this.headings = columns.map((column, i) => html("th", { scope: "col", "aria-sort": "none" },
      html("button", { type: "button", class: "sort", click: () => this.sortBy(i) },
        column.title)));
    this.element = scrolling(label, html("table", { class: "sortable" },
      html("caption", { class: "unseen" }, label),
      html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "Details"), this.headings)),
      this.body));
    this.keep = () => true;
    this.draw();
  }

  filter(keep) {
    this.keep = keep;
    return this.draw();
  }

  sortBy(column) {
    this.descending = this.sorted === column && !this.descending;
    this.sorted = column;
    this.headings.forEach((heading, i) => heading.setAttribute("aria-sort",
      i !== column ? "none" : this.descending ? "descending" : "ascending"));
    say(`Sorted by ${this.columns[column].title}, ${this.descending ? "falling" : "rising"}.`);
    this.draw();
  }

  draw() {
    const rows = this.rows.filter(this.keep);
    if (this.sorted !== null) {
      const value = this.columns[this.sorted].value;
      rows.sort((a, b) => compare(value(a), value(b), this.descending));
    }
    this.body.replaceChildren(...rows.flatMap((row) => this.lines(row)));
    return rows.length;
  }

  lines(row) {
    const below = html("tr", { class: "below", hidden: true },
      html("td", { colspan: this.columns.length + 1 }));
    const button = html("button", { type: "button", "aria-expanded": "false",
      "aria-label": `Details of ${row.method} on ${row.dataset}, ${row.task}` }, "show");
    button.addEventListener("click", () => {
      const open = below.hasAttribute("hidden");
      below.toggleAttribute("hidden", !open);
      button.setAttribute("aria-expanded", String(open));
      button.textContent = open ? "hide" : "show";
      if (open && !below.firstChild.firstChild) below.firstChild.append(this.detail(row));
    });
    const line = html("tr", {}, html("td", {}, button),
      this.columns.map((column) => column.cell(row)));
    return [line, below];
  }
}

function compare(a, b, descending) {
  const empty = (value) => value === null || value === undefined || value === "";
  const [none, other] = [empty(a), empty(b)];
  if (none || other) return none - other;
  const order = typeof a === "number" ? a - b : String(a).localeCompare(String(b));
  return descending ? -order : order;
}
