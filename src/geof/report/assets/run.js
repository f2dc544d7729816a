// The page of one run.

const UNITS = { node: "nodes", link: "pairs", graph: "graphs" };
const SERIES = { loss: "training loss", validation_loss: "validation loss",
  learning_rate: "learning rate", gradient_norm: "gradient norm" };

/** Everybody the page names, by number. */
function people(page) {
  const found = new Map();
  const what = page.map && page.map.of === "graphs" ? "graph" : "node";
  for (const [key, [id, label, prediction, confidence, part]] of Object.entries(page.names || {})) {
    found.set(Number(key), { id, label, prediction, confidence, part, sentence() {
      const own = label === null ? "" : `, class ${page.classes[label]}`;
      const said = prediction === null ? ""
        : `, predicted ${page.classes[prediction]} (${decimals(confidence, 2)})`;
      return `${what} ${id}${own}${said}`;
    } });
  }
  return found;
}

function overview(page) {
  return section("overview", "Overview",
    html("div", { class: "headline" }, page.headline.map((one) => html("div", {},
      html("span", { class: "value" }, named(one.value)),
      html("span", { class: "name" }, named(one.label))))),
    missingNote("Not on this page", page.missing),
    facts(page.facts),
    page.notes.length ? [html("h3", {}, "About the data"),
      html("ul", {}, page.notes.map((text) => html("li", {}, named(text))))] : null,
    folded("Config", tree(page.config)),
    page.changes.length ? folded("Settings changed on the way", tree({ ...page.changes })) : null,
    folded("Versions and machine", tree({ "Versions that ran": page.versions,
      "Machine that ran": page.machine || {},
      "This page was made by": page.made })));
}

function curvesSection(page) {
  const { epochs, series, best, metric } = page.curves;
  const mark = best && epochs.includes(best) ? { x: best, text: `chosen: ${best}` } : null;
  const points = (name) => epochs.map((epoch, i) => [epoch, series[name][i]]);
  const chart = (title, names) => {
    const shown = names.filter((name) => name in series);
    if (!shown.length) return null;
    const lines = shown.map((name, i) => ({ name: name === "validation" ? `validation ${metric}`
      : SERIES[name] || name, points: shown.length > 1 || name !== "validation" ? points(name)
      : points(name).filter((point) => point[1] !== null), style: `s${i}` }));
    return titled(title, lineChart({ title, xLabel: "epoch", yLabel: "", wholeX: true,
      series: lines, mark, readable: true }));
  };
  const known = ["loss", "validation_loss", "validation"];
  const others = Object.keys(series).filter((name) => !known.includes(name));
  return section("curves", "Training", html("div", { class: "pair" },
    chart("Loss", ["loss", "validation_loss"]), chart(`Validation ${metric}, percent`, ["validation"]),
    others.map((name) => chart(capital(SERIES[name] || name), [name]))),
  html("p", { class: "help" }, "Point at a chart, or focus it and use the arrow keys, to read values."));
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function runPage(page) {
  page.kindOf = UNITS[page.task];
  const everybody = people(page);
  const parts = [overview(page)];
  if (page.curves) parts.push(curvesSection(page));
  if (page.scores) parts.push(scoresSection(page));
  const view = page.geometry ? new GeometryView(page, everybody) : null;
  let map = null;
  const open = (key) => {
    if (map) map.field.show(key);
    if (view && !view.open(key)) return;
    if (view) view.reveal();
    say(`Selected ${everybody.get(key).sentence()}`);
  };
  if (page.map) {
    map = new StateMap(page, everybody, open);
  }
  if (view) {
    if (map) view.onOpen = (key) => map.field.show(key);
    const scope = page.geometry.scopes[0];
    const start = page.geometry.of === "graphs" ? scope.key : scope.nodes[0].node;
    view.open(page.first === null ? start : page.first);
  }
  const explored = [map && map.element, view && view.element, view && view.heard()].filter(Boolean);
  return { parts, explored };
}
