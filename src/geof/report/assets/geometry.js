// The geometry of one node: neighbours and weights, block ellipses, log-determinants, directions.

/** The ellipse {u : u' S^-1 u <= 1} as a path, S given by its entries xx, xy, yy. */
function ellipsePath([xx, xy, yy], scale) {
  const middle = (xx + yy) / 2, spread = Math.hypot((xx - yy) / 2, xy);
  const long = Math.sqrt(Math.max(middle + spread, 0)) * scale;
  const short = Math.sqrt(Math.max(middle - spread, 0)) * scale;
  const angle = 0.5 * Math.atan2(2 * xy, xx - yy);
  const x = (long * Math.cos(angle)).toFixed(2), y = (-long * Math.sin(angle)).toFixed(2);
  const arc = `A${long.toFixed(2)} ${short.toFixed(2)} ${(-angle * 180 / Math.PI).toFixed(2)} 1 0`;
  return `M${x} ${y}${arc} ${-x} ${-y}${arc} ${x} ${y}Z`;
}

function longest(node) {
  return Math.max(1, ...node.shadow.flat().map(([xx, xy, yy]) =>
    Math.sqrt((xx + yy) / 2 + Math.hypot((xx - yy) / 2, xy))));
}

/** One small drawing per block, moved from step to step. */
class BlockEllipses {
  constructor(blocks) {
    this.paths = [];
    this.ghosts = [];
    this.units = [];
    this.texts = [];
    this.shown = null;
    this.frame = 0;
    this.element = html("div", { class: "blocks" }, Array.from({ length: blocks },
      (_, i) => this.block(i)));
  }

  block(number) {
    const unit = svg("circle", { r: 40, class: "unit" });
    const ghost = svg("path", { class: "ghost" });
    const path = svg("path", { class: "ellipse", "data-block": number + 1 });
    const text = html("output", { class: "logdet" });
    this.units.push(unit);
    this.ghosts.push(ghost);
    this.paths.push(path);
    this.texts.push(text);
    return html("div", { class: "block" },
      svg("svg", { viewBox: "-54 -54 108 108", role: "img", "aria-label": `Block ${number + 1}` },
        svg("path", { d: "M-52 0H52M0 -52V52", class: "cross" }), unit, ghost, path),
      html("p", {}, html("b", {}, `block ${number + 1}`), html("br"), "log det ", text));
  }

  show(node, step) {
    const scale = 50 / longest(node), target = node.shadow[step];
    this.units.forEach((unit) => unit.setAttribute("r", scale));
    this.ghosts.forEach((ghost, i) => ghost.setAttribute("d", ellipsePath(node.shadow[0][i], scale)));
    this.texts.forEach((text, i) => { text.textContent = decimals(node.logdet[step][i]); });
    const from = this.node === node && !calm() ? this.shown : null;
    this.node = node;
    this.morph(from, target, scale);
  }

  morph(from, target, scale) {
    cancelAnimationFrame(this.frame);
    const draw = (now) => {
      this.shown = now;
      this.paths.forEach((path, i) => path.setAttribute("d", ellipsePath(now[i], scale)));
    };
    if (!from) { draw(target); return; }
    const start = performance.now();
    const tick = (time) => {
      const part = Math.min(Math.max((time - start) / 260, 0), 1);
      draw(target.map((end, i) => end.map((value, k) => from[i][k] + part * (value - from[i][k]))));
      if (part < 1) this.frame = requestAnimationFrame(tick);
    };
    draw(from);
    this.frame = requestAnimationFrame(tick);
  }
}

/** A small graph drawn with its nodes shaded by log det. */
class GraphDrawing {
  constructor(open) {
    this.open = open;
    this.element = html("div", { class: "drawing" });
  }

  load(scope, select) {
    const size = 320, edge = 16;
    const at = (i) => ({ x: edge + scope.layout[i][0] * (size - 2 * edge),
      y: edge + scope.layout[i][1] * (size - 2 * edge) });
    this.scope = scope;
    this.plot = svg("svg", { viewBox: `0 0 ${size} ${size}`, class: "map small", tabindex: 0,
      role: "application", "aria-label": `Graph of ${scope.nodes.length} nodes`, id: "graph-plot" });
    this.lines = scope.edges.map(([u, v]) => {
      const a = at(u), b = at(v);
      return svg("line", { x1: a.x, y1: a.y, x2: b.x, y2: b.y, class: "edge" });
    });
    const points = scope.nodes.map((node) => ({ key: node.node, ...at(node.node) }));
    this.marks = points.map((point) => svg("circle", { cx: point.x, cy: point.y,
      r: points.length > 60 ? 4 : 6, class: "vertex", "data-key": point.key }));
    this.plot.append(...this.lines, ...this.marks);
    this.field = new PointField(this.plot, points, (key) => `node ${key}`, select);
    this.element.replaceChildren(figure("Graph", `Nodes are placed ${scope.how}; the fuller their colour, the `
      + "larger their log det at this step. Lines into the chosen node are as wide as their weight.",
    this.plot, this.field.output));
  }

  show(node, step) {
    const totals = this.scope.nodes.map((one) => one.logdet.map(sum));
    const all = totals.flat(), low = Math.min(...all), high = Math.max(...all);
    this.marks.forEach((mark, i) => mark.style.setProperty("--share",
      `${(100 * (totals[i][step] - low) / (high - low || 1)).toFixed(1)}%`));
    this.lines.forEach((line, i) => {
      const [u, v] = this.scope.edges[i];
      const other = u === node.node ? v : v === node.node ? u : null;
      const place = other === null || step === 0 ? -1 : node.neighbours.indexOf(other);
      line.style.strokeWidth = place < 0 ? "" : String(1 + 8 * node.weights[place][step - 1]);
      line.classList.toggle("near", place >= 0);
    });
    this.field.show(node.node);
  }
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

/** The whole view: chooses a node, follows the slider. */
class GeometryView {
  constructor(page, people) {
    Object.assign(this, { page, people, data: page.geometry, step: page.geometry.steps });
    this.scopes = new Map(this.data.scopes.map((scope) => [scope.key, scope]));
    this.facts = html("div", { class: "who" });
    this.neighbours = html("div");
    this.directions = html("div");
    this.charts = html("div", { class: "pair close" });
    this.total = html("output", { id: "total-logdet" });
    this.title = html("h3", { id: "chosen", tabindex: -1 });
    this.ellipses = new BlockEllipses(this.data.blocks);
    this.drawing = this.data.of === "graphs" ? new GraphDrawing() : null;
    this.onOpen = () => {};
    this.element = this.build();
  }

  build() {
    const data = this.data;
    this.slider = html("input", { type: "range", id: "step", min: 0, max: data.steps, step: 1,
      value: data.steps, input: () => this.move(Number(this.slider.value)) });
    this.stepName = html("output", { for: "step", id: "step-name" });
    return section("geometry", "Geometry of a node",
      html("p", { class: "lead" }, data.which, data.of === "graphs"
        ? " Choose a graph on the map or in the list, then a node in the drawing."
        : " Choose a node on the map, by its identifier, or among the neighbours below."),
      this.picker(), this.title, this.facts,
      html("div", { class: "controls step" }, html("label", { for: "step" }, "Step"), this.slider,
        this.stepName, html("span", { class: "total" }, "log det of all blocks ", this.total)),
      html("div", { class: this.drawing ? "pair" : "" },
        this.drawing ? this.drawing.element : null,
        figure("Ellipses", this.caption(), this.ellipses.element)),
      this.directions, this.charts);
  }

  /** What stands under the map where there is room: whom the node listens to. */
  heard() {
    return html("div", { class: "heard" }, this.neighbours);
  }

  picker() {
    if (!this.drawing) return null;
    this.select = html("select", { id: "graph", change: () => this.open(Number(this.select.value)) },
      this.data.scopes.map((scope) => html("option", { value: scope.key },
        this.people.get(scope.key).sentence())));
    return html("div", { class: "controls" }, html("label", { for: "graph" }, "Graph"), this.select);
  }

  caption() {
    const plane = this.data.size === 1 ? "Blocks have one coordinate here, so the ball is an interval."
      : "Shown is its shadow on the plane of the two directions that the last step's frame stretches "
        + "most (the first runs to the right), the same plane at every step.";
    return "Each block's unit ball {v : vᵀ g v ≤ 1} of the metric g = LᵀL. Where the frame L "
      + `stretches, small differences count and the ball is narrow. ${plane} Dashed: the Euclidean `
      + "unit circle. Thin: the start, step 0.";
  }

  /** Open a node, or a graph at its first node; returns whether it is here. */
  open(key) {
    if (this.drawing) {
      const scope = this.scopes.get(key);
      if (!scope) return this.absent(key);
      this.select.value = String(key);
      this.drawing.load(scope, (node) => this.choose(scope, node));
      this.onOpen(key);
      return this.choose(scope, scope.nodes[0].node);
    }
    const scope = this.data.scopes[0];
    if (!scope.nodes.some((node) => node.node === key)) return this.absent(key);
    this.onOpen(key);
    return this.choose(scope, key);
  }

  absent(key) {
    const kind = this.drawing ? "graph" : "node";
    say(`The geometry of ${this.people.get(key).id} is not on this page. Ask for it with --${kind}.`);
    this.title.textContent = `Not on this page: ask for it with --${kind} when making the report`;
    this.onOpen(key);
    return false;
  }

  /** Bring the view onto the screen if it is not there. */
  reveal() {
    const { top } = this.title.getBoundingClientRect();
    if (top >= 0 && top < window.innerHeight * 0.7) return;
    this.title.scrollIntoView({ behavior: calm() ? "auto" : "smooth", block: "start" });
  }

  choose(scope, key) {
    this.scope = scope;
    this.node = scope.nodes.find((node) => node.node === key);
    this.move(this.step);
    return true;
  }

  /** Follow a neighbour; the button that was pressed is gone then, so the title takes the focus. */
  goTo(key) {
    if (this.drawing) this.choose(this.scope, key);
    else this.open(key);
    this.title.focus();
    say(`Selected ${this.drawing ? "" : "node "}${this.nameOf(key)}`);
  }

  nameOf(key) {
    return this.drawing ? `node ${key}` : this.people.get(key).id;
  }

  move(step) {
    this.step = step;
    const { node, data } = this;
    this.slider.setAttribute("aria-valuetext", `step ${step} of ${data.steps}`);
    this.stepName.textContent = step === 0 ? `start, before ${data.steps} steps`
      : `after step ${step} of ${data.steps}`;
    this.total.textContent = decimals(sum(node.logdet[step]));
    const where = this.drawing ? [" of graph ", named(this.people.get(this.scope.key).id)] : [];
    const name = this.drawing ? node.node : this.nameOf(node.node);
    this.title.replaceChildren("Node ", named(name), ...where);
    this.showFacts();
    this.ellipses.show(node, step);
    if (this.drawing) this.drawing.show(node, step);
    this.neighbours.replaceChildren(this.neighbourTable());
    this.directions.replaceChildren(this.directionTable());
    this.charts.replaceChildren(...this.curves());
  }

  showFacts() {
    const one = this.people.get(this.drawing ? this.scope.key : this.node.node), pairs = [];
    const classes = this.page.classes, owner = this.drawing ? "Graph's " : "";
    if (one.label !== null) pairs.push([owner ? `${owner}class` : "Class", classes[one.label]]);
    if (one.prediction !== null) {
      pairs.push([owner ? `${owner}prediction` : "Prediction", classes[one.prediction]],
        ["Probability", decimals(one.confidence)]);
    }
    if (one.part) pairs.push(["Part", one.part]);
    pairs.push(["Neighbours", this.node.degree]);
    this.facts.replaceChildren(facts(pairs));
  }

  neighbourTable() {
    const { node, step } = this;
    const rows = node.neighbours.map((key, i) => this.neighbourRow(key,
      step ? node.weights[i][step - 1] : null));
    const others = step ? `total weight ${decimals(node.rest.weights[step - 1])}` : "weights to come";
    const rest = node.rest.count === 0 ? "" : `The ${node.neighbours.length} with the largest mean `
      + `over the steps. And ${node.rest.count} more with ${others}.`;
    const when = step ? `Weights ω of step ${step}; they sum to one.`
      : "Before the first step no neighbour has been weighed.";
    return html("div", {}, html("h4", {}, "Whom it listens to"), html("p", { class: "help" },
      `${when} ${rest}`),
    scrolling("Neighbours and weights", html("table", { class: "weights" },
      html("thead", {}, html("tr", {}, ["Neighbour", ...(this.drawing ? [] : ["Class", "Prediction"]),
        "Weight", ""].map((text) => html("th", { scope: "col" }, text || "\u00a0")))),
      html("tbody", {}, rows))));
  }

  neighbourRow(key, weight) {
    const here = this.scope.nodes.some((node) => node.node === key);
    const name = key === this.node.node ? "itself" : this.nameOf(key);
    const button = here && key !== this.node.node ? html("button", { type: "button", class: "link",
      click: () => this.goTo(key) }, named(name)) : named(name);
    const one = this.drawing ? null : this.people.get(key), classes = this.page.classes;
    const label = (value) => html("td", {}, value === null ? "–" : named(classes[value]));
    const bar = html("span", { class: "weight" });
    bar.style.width = `${(100 * (weight || 0)).toFixed(1)}%`;
    return html("tr", {}, html("th", { scope: "row" }, button),
      one ? [label(one.label), label(one.prediction)] : null,
      html("td", {}, decimals(weight)), html("td", { class: "barcell" }, bar));
  }

  directionTable() {
    const { node, step, data } = this;
    const all = node.stretch[step].flatMap((pair, block) =>
      pair.map((length, k) => ({ block, k, length })));
    all.sort((a, b) => b.length - a.length);
    const rows = all.slice(0, 6).map(({ block, k, length }) => [
      `block ${block + 1}, ${k === 0 ? "first" : "second"}`, `× ${decimals(length)}`,
      node.features[block][k].map((feature, i) => [i ? ", " : "",
        named(data.features[feature] || `feature ${feature}`),
        ` (${decimals(node.loadings[block][k][i])})`])]);
    const caveat = data.normalised ? ", before the state is normalised" : "";
    return html("div", {}, html("h4", {}, "Directions stretched most"), html("p", { class: "help" },
      `The six largest of ${all.length}: how long a unit vector along each direction of the planes `
      + "above becomes at this step. Beside it the input features that load most on it: how far one "
      + `unit of the feature moves the initial state W_in x that way${caveat}.`),
    scrolling("Directions", table(null, ["Direction", "Stretch", "Input features"], rows,
      { class: "directions" })));
  }

  curves() {
    const { node, scope, data, step } = this;
    const steps = (values, first) => values.map((value, i) => [i + first, value]);
    const blocks = Array.from({ length: data.blocks }, (_, b) => ({ name: `block ${b + 1}`,
      points: steps(node.logdet.map((row) => row[b]), 0), style: "faint", quiet: true }));
    const mark = { x: step, text: `step ${step}` };
    const mean = { name: "mean of the blocks", style: "s0",
      points: steps(node.logdet.map((row) => sum(row) / row.length), 0) };
    const whole = this.drawing ? "whole graph" : "all nodes";
    return [
      figure("log det by step", "log det L of each block (thin) and their mean.",
        lineChart({ title: "log det by step", xLabel: "step", yLabel: "log det L", wholeX: true, mark, series: [...blocks, mean] })),
      figure("Geometry change by step", "D_Z: how far the coordinates of a block moved in a step, on average over blocks (and "
        + "nodes).",
        lineChart({ title: "Geometry change by step", xLabel: "step", yLabel: "D_Z", wholeX: true,
          xRange: [0, data.steps], mark: step ? mark : null, series: [
            { name: whole, points: steps(scope.change, 1), style: "s1" },
            { name: "this node", points: steps(node.change, 1), style: "s0" }] }))];
  }
}
