// The page of many results: tables beside the paper, every recorded row, reproduced studies.

function resultDetail(row) {
  const d = row.details;
  const splits = d.splits.map((one) => [named(one.split), one.split_hash, String(one.seed),
    decimals(one.validation, 2), decimals(one.test, 2), `${one.best_epoch} of ${one.epochs}`,
    String(one.revision), named(one.stale || "")]);
  return html("div", { class: "detail" },
    html("p", {}, html("code", {}, named(d.command))),
    facts([["Epoch chosen by", d.selection], ["Parameters", compact(d.parameters)],
      ["Versions", Object.entries(d.versions).map(([name, value]) => `${name} ${value}`).join(", ")],
      ["Machine", Object.values(d.machine).map(asText).join(", ")]]),
    d.notes.length ? html("ul", {}, d.notes.map((text) => html("li", {}, named(text)))) : null,
    d.failures.map((one) => html("p", { class: "missing" },
      named(`Split ${one.split} failed: ${asText(one.error)}`))),
    scrolling("Splits", table("Splits",
      ["Split", "Hash", "Seed", "Validation", "Test", "Epoch", "Revision", "Stale"], splits, { class: "numbers" })),
    folded("Options", tree(d.options)));
}

function resultColumns() {
  const text = (title, read) => ({ title, value: read,
    cell: (row) => html("td", {}, named(read(row))) });
  const number = (title, read, digits) => ({ title, value: read,
    cell: (row) => html("td", { class: "number" }, decimals(read(row), digits)) });
  return [text("Task", (row) => row.task), text("Dataset", (row) => row.dataset),
    text("Method", (row) => row.method), text("Preset", (row) => row.preset),
    text("Changes", (row) => row.changes), number("Splits", (row) => row.count, 0),
    { title: "Test", value: (row) => row.mean,
      cell: (row) => html("td", { class: "number" }, meanAndDeviation(row.mean, row.deviation)) },
    { title: "Paper", value: (row) => row.paper,
      cell: (row) => html("td", { class: "number" },
        meanAndDeviation(row.paper, row.paper_deviation, 1)) },
    { title: "Difference", value: (row) => row.difference,
      cell: (row) => html("td", { class: row.marked ? "number marked" : "number" },
        decimals(row.difference, 2), row.marked ? " ≠" : "") },
    number("Validation", (row) => row.validation, 2), number("s/epoch", (row) => row.seconds, 2)];
}

function choice(id, label, values, changed) {
  const select = html("select", { id, change: changed }, html("option", { value: "" }, "all"),
    values.map((value) => html("option", { value }, value)));
  return [select, [html("label", { for: id }, label), select]];
}

function everyRow(page) {
  const list = new SortableTable("Every recorded row", resultColumns(), page.rows, resultDetail);
  const count = html("output", { class: "readout", id: "row-count" });
  const apply = () => {
    const words = text.value.toLowerCase();
    const shown = list.filter((row) => (!task.value || row.task === task.value)
      && (!dataset.value || row.dataset === dataset.value)
      && (!words || `${row.method} ${row.preset} ${row.changes}`.toLowerCase().includes(words)));
    count.textContent = `${shown} of ${page.rows.length} rows`;
  };
  const distinct = (name) => [...new Set(page.rows.map((row) => row[name]))].sort();
  const [task, taskParts] = choice("task", "Task", distinct("task"), apply);
  const [dataset, datasetParts] = choice("dataset", "Dataset", distinct("dataset"), apply);
  const text = html("input", { type: "search", id: "method", input: apply, autocomplete: "off" });
  apply();
  return section("rows", "Every recorded row", html("p", { class: "lead" }, page.rule),
    html("form", { class: "controls", submit: (event) => event.preventDefault() }, taskParts,
      datasetParts, html("label", { for: "method" }, "Method, preset or change"), text, count),
    list.element);
}

function study(one, number, rule) {
  const marked = one.table && one.table.rows.some((row) => row.cells.some((cell) => cell.marked));
  return section(`study-${number}`, one.title,
    one.text.split(/\n\s*\n/).filter(Boolean).map((part) =>
      html("p", { class: "prose" }, named(part))),
    missingNote("Missing", one.missing),
    marked ? html("p", { class: "lead" }, rule) : null,
    one.table ? comparedTable(one.table) : null,
    one.table && one.table.caption && one.table.caption !== one.text
      ? html("p", { class: "help" }, named(one.table.caption)) : null,
    one.figure ? savable(one.title, html("figure", {},
      html("img", { src: one.figure, alt: `Figure: ${one.title}` }))) : null,
    one.command ? html("p", {}, html("code", {}, named(one.command))) : null,
    folded("Versions and machine", tree({ Versions: one.versions, Machine: one.machine })));
}

function resultsPage(page) {
  const parts = [];
  if (page.tables.length) {
    parts.push(section("tables", "Beside the paper", html("p", { class: "lead" },
      "Mean and deviation of the test metric over splits, in percent. ", page.rule),
    page.tables.map((one) => [html("h3", {}, one.title), comparedTable(one)])));
  }
  parts.push(...page.studies.map((one, i) => study(one, i, page.rule)));
  if (page.rows.length) parts.push(everyRow(page));
  return { parts, explored: [] };
}
