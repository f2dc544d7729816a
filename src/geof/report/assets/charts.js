// Line charts with axes, a marked place, and a cursor that pointer and arrow keys move.

const PALETTE = 8;

function niceTicks(low, high, wanted) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) {
    ticks.push(+(i * step).toPrecision(12));
  }
  return ticks;
}

function extent(values, fixed) {
  if (fixed) return fixed;
  let low = Math.min(...values), high = Math.max(...values);
  if (!values.length) return [0, 1];
  if (low === high) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
  const room = (high - low) * 0.05;
  return [low - room, high + room];
}

function linePath(points, x, y) {
  let path = "", open = false;
  for (const [px, py] of points) {
    if (py === null || py === undefined) { open = false; continue; }
    path += `${open ? "L" : "M"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
    open = true;
  }
  return path;
}

function axes(frame, x, y, options) {
  const { left, right, top, bottom } = frame;
  const marks = [];
  for (const tick of niceTicks(...options.xRange, options.wholeX
    ? Math.min(6, Math.max(1, options.xRange[1] - options.xRange[0])) : 5)) {
    if (options.wholeX && !Number.isInteger(tick)) continue;
    marks.push(svg("text", { x: x(tick), y: bottom + 16, class: "tick", "text-anchor": "middle" },
      compact(tick)));
  }
  for (const tick of niceTicks(...options.yRange, 4)) {
    marks.push(svg("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: "grid" }));
    marks.push(svg("text", { x: left - 6, y: y(tick) + 4, class: "tick", "text-anchor": "end" },
      compact(tick)));
  }
  marks.push(svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }));
  marks.push(svg("text", { x: right, y: bottom + 32, class: "label", "text-anchor": "end" },
    options.xLabel));
  marks.push(svg("text", { x: left, y: top - 8, class: "label" }, options.yLabel));
  return marks;
}

function legend(series) {
  const shown = series.filter((one) => !one.quiet);
  if (shown.length < 2) return null;
  return html("ul", { class: "legend" }, shown.map((one) => html("li", {},
    html("span", { class: `swatch ${one.style}` }), one.name)));
}

/** What the cursor reads: a line of text below the chart. */
function cursor(plot, frame, x, xs, read) {
  const rule = svg("line", { y1: frame.top, y2: frame.bottom, class: "cursor", hidden: true });
  const output = html("p", { class: "readout", "aria-live": "polite" }, "\u00a0");
  let place = -1;
  const move = (next) => {
    place = Math.max(0, Math.min(xs.length - 1, next));
    rule.setAttribute("x1", x(xs[place]));
    rule.setAttribute("x2", x(xs[place]));
    rule.removeAttribute("hidden");
    output.textContent = read(place);
  };
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * frame.width;
    let nearest = 0;
    xs.forEach((value, i) => {
      if (Math.abs(x(value) - at) < Math.abs(x(xs[nearest]) - at)) nearest = i;
    });
    move(nearest);
  });
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    move(place < 0 && step > 0 ? 0 : place + step);
  });
  return [rule, output];
}

/**
 * Draw lines.
 * options: title, xLabel, yLabel, series [{name, points [[x, y]], style, quiet}], mark {x, text},
 * diagonal, xRange, yRange, wholeX, readable (whether a cursor makes sense).
 */
function lineChart(options) {
  const frame = { width: options.width || 420, height: options.height || 260 };
  Object.assign(frame, { left: 52, right: frame.width - 12, top: 26, bottom: frame.height - 42 });
  const points = options.series.flatMap((one) => one.points);
  const xRange = options.xRange || tight(points.map((point) => point[0]));
  const heights = points.map((point) => point[1]).filter((value) => value !== null);
  const yRange = extent(heights, options.yRange);
  const x = (value) => frame.left
    + (value - xRange[0]) / (xRange[1] - xRange[0] || 1) * (frame.right - frame.left);
  const y = (value) => frame.bottom
    - (value - yRange[0]) / (yRange[1] - yRange[0]) * (frame.bottom - frame.top);
  const plot = svg("svg", {
    viewBox: `0 0 ${frame.width} ${frame.height}`, class: "chart", role: "img",
    "aria-label": options.title, tabindex: options.readable ? 0 : null,
    style: `max-width: ${1.2 * frame.width}px`,
  }, axes(frame, x, y, { ...options, xRange, yRange }));
  if (options.diagonal) {
    plot.append(svg("path", { class: "reference",
      d: linePath([[xRange[0], yRange[0]], [xRange[1], yRange[1]]], x, y) }));
  }
  if (options.mark) plot.append(...marked(options.mark, frame, x));
  for (const one of options.series) {
    plot.append(svg("path", { d: linePath(one.points, x, y), class: `line ${one.style}` }));
    if (one.points.length < 12 && one.style !== "chance") {
      for (const [px, py] of one.points) {
        if (py !== null) plot.append(svg("circle", { cx: x(px), cy: y(py), r: one.quiet ? 1.5 : 3,
          class: `dot ${one.style}` }));
      }
    }
  }
  if (!options.readable) return [plot, legend(options.series)];
  const xs = options.series[0].points.map((point) => point[0]);
  const read = (place) => `${options.xLabel} ${compact(xs[place])}: ` + options.series
    .map((one) => `${one.name} ${compact(one.points[place][1])}`).join(", ");
  const [rule, output] = cursor(plot, frame, x, xs, read);
  plot.append(rule);
  return [plot, legend(options.series), output];
}

function tight(values) {
  const low = Math.min(...values), high = Math.max(...values);
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

function marked(mark, frame, x) {
  const late = x(mark.x) > (frame.left + frame.right) / 2;
  return [
    svg("line", { x1: x(mark.x), x2: x(mark.x), y1: frame.top, y2: frame.bottom, class: "mark" }),
    svg("text", { x: x(mark.x) + (late ? -5 : 5), y: frame.top + 10, class: "marktext",
      "text-anchor": late ? "end" : "start" }, mark.text),
  ];
}
