// What the run gets right: confusion, classes one by one, ranking curves, calibration.

function confusionMatrix(scores) {
  const classes = scores.classes;
  const header = html("tr", {}, html("th", { scope: "col" }, "true ↓ predicted →"),
    classes.map((name) => html("th", { scope: "col" }, named(name))));
  const rows = scores.confusion.map((counts, i) => {
    const total = counts.reduce((sum, count) => sum + count, 0);
    return html("tr", {}, html("th", { scope: "row" }, named(classes[i])),
      counts.map((count) => confusionCell(count, total)));
  });
  return figure("Confusion matrix",
    "Counts; the shade and the small number are the share of the row, that is of the true class.",
    scrolling("Confusion matrix", html("table", { class: "confusion" },
      html("thead", {}, header), html("tbody", {}, rows))));
}

function confusionCell(count, total) {
  const share = total ? count / total : 0;
  const cell = html("td", { class: share > 0.55 ? "deep" : null, "data-value": count }, String(count),
    html("small", {}, total ? percent(share, 0) : "–"));
  cell.style.setProperty("--share", `${(100 * share).toFixed(1)}%`);
  return cell;
}

function perClassTable(scores) {
  const rows = scores.per_class.map((one, i) => [named(scores.classes[i]), percent(one.precision),
    percent(one.recall), percent(one.f1), compact(one.count)]);
  const macro = scores.macro;
  rows.push(["Macro average", percent(macro.precision), percent(macro.recall), percent(macro.f1),
    compact(macro.count)]);
  return scrolling("Every class", table("Every class",
    ["Class", "Precision", "Recall", "F1", "Rows"], rows, { class: "numbers averaged" }));
}

function targetTable(targets) {
  const rows = targets.rows.map(([name, ...values]) => [named(name), ...values]);
  if (targets.mean) rows.push(targets.mean);
  return scrolling("Every target", table("Every target", targets.heading, rows,
    { class: targets.mean ? "numbers averaged" : "numbers" }));
}

function curveNote(curve) {
  return curve.points.length < curve.of
    ? ` Drawn through ${compact(curve.points.length)} of its ${compact(curve.of)} points.` : "";
}

function rankingCurves(ranking) {
  const unit = { xRange: [0, 1], yRange: [0, 1.02], width: 340, height: 320 };
  const roc = lineChart({ ...unit, title: "ROC curve", xLabel: "false positive rate",
    yLabel: "true positive rate", diagonal: true,
    series: [{ name: "ROC", points: ranking.roc.points, style: "s0" }] });
  const base = [[0, ranking.share], [1, ranking.share]];
  const pr = lineChart({ ...unit, title: "Precision-recall curve", xLabel: "recall",
    yLabel: "precision", series: [
      { name: "precision", points: ranking.pr.points, style: "s1" },
      { name: "chance", points: base, style: "chance", quiet: true }] });
  const positive = html("span", {}, "Positive: ", named(ranking.positive), ". ");
  return html("div", { class: "pair" },
    figure("ROC curve", html("span", {}, positive, `Area ${percent(ranking.roc_auc, 2)}.${curveNote(ranking.roc)}`),
      roc),
    figure("Precision-recall curve", `Average precision ${percent(ranking.average_precision, 2)}; `
      + `by chance ${percent(ranking.share)}.${curveNote(ranking.pr)}`, pr));
}

function reliability(calibration) {
  const width = 340, height = 320, left = 44, top = 16, side = 260;
  const x = (value) => left + value * side, y = (value) => top + (1 - value) * side;
  const plot = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img",
    "aria-label": "Reliability diagram", style: `max-width: ${1.2 * width}px` });
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    plot.append(svg("line", { x1: left, x2: left + side, y1: y(tick), y2: y(tick), class: "grid" }),
      svg("text", { x: left - 6, y: y(tick) + 4, class: "tick", "text-anchor": "end" }, String(tick)),
      svg("text", { x: x(tick), y: top + side + 16, class: "tick", "text-anchor": "middle" },
        String(tick)));
  }
  const bins = calibration.bins, step = 1 / bins.length;
  const most = Math.max(...bins.map((bin) => bin.count), 1);
  bins.forEach((bin, i) => {
    if (!bin.count) return;
    plot.append(svg("rect", { x: x(i * step) + 1, width: step * side - 2, y: y(bin.right),
      height: bin.right * side, class: "bar" },
    svg("title", {}, `${bin.count} rows, mean probability ${decimals(bin.confidence)}, right `
      + decimals(bin.right))),
    svg("circle", { cx: x(bin.confidence), cy: y(bin.right), r: 2 + 4 * Math.sqrt(bin.count / most),
      class: "dot s0" }));
  });
  plot.append(svg("path", { class: "reference", d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}` }),
    svg("text", { x: left + side, y: top + side + 34, class: "label", "text-anchor": "end" },
      "probability"));
  return plot;
}

function calibrationFigure(calibration) {
  const counts = calibration.bins.map((bin, i) => [
    `${(i / calibration.bins.length).toFixed(1)} – ${((i + 1) / calibration.bins.length).toFixed(1)}`,
    compact(bin.count), decimals(bin.confidence), decimals(bin.right)]);
  return html("div", { class: "pair" },
    figure("Reliability diagram", `Expected calibration error ${percent(calibration.error, 2)}: ${calibration.of}. `
      + "Dots lie on the dashed line where probabilities can be taken at their word.",
    reliability(calibration)),
    scrolling("Bins of the diagram", table("Bins of the diagram",
      ["Probability", "Rows", "Mean probability", "Right"], counts, { class: "numbers" })));
}

function scoresSection(page) {
  const scores = page.scores;
  const parts = [html("p", { class: "lead" }, page.part_note,
    ` ${compact(scores.rows)} ${page.kindOf}.`)];
  if (scores.confusion) parts.push(html("h3", {}, "Confusion"), confusionMatrix(scores),
    perClassTable(scores));
  if (scores.ranking) parts.push(html("h3", {}, "Ranking"), rankingCurves(scores.ranking));
  if (scores.targets) parts.push(html("h3", {}, "Targets"), targetTable(scores.targets));
  if (scores.calibration) parts.push(html("h3", {}, "Calibration"),
    calibrationFigure(scores.calibration));
  return section("scores", "Scores", ...parts);
}
