// Points in the plane that pointer and keyboard can visit, and the map of states made of them.

const SHAPES = [
  (r) => `M${-r} 0A${r} ${r} 0 1 0 ${r} 0A${r} ${r} 0 1 0 ${-r} 0Z`,
  (r) => `M${-r} ${-r}H${r}V${r}H${-r}Z`,
  (r) => `M0 ${-1.2 * r}L${1.15 * r} ${0.85 * r}H${-1.15 * r}Z`,
  (r) => `M0 ${-1.35 * r}L${1.35 * r} 0L0 ${1.35 * r}L${-1.35 * r} 0Z`,
  (r) => `M0 ${1.2 * r}L${1.15 * r} ${-0.85 * r}H${-1.15 * r}Z`,
];

function classStyle(label) {
  return label === null || label === undefined ? "c-none" : `c${label % PALETTE}`;
}

function classShape(label, radius) {
  const shape = label === null || label === undefined ? 0 : Math.floor(label / PALETTE);
  return SHAPES[shape % SHAPES.length](radius);
}

/**
 * Lets points be visited: hovering and arrow keys move a ring, a click or Enter selects.
 * points: [{x, y, key}] in the units of the drawing.
 */
class PointField {
  constructor(plot, points, describe, select) {
    Object.assign(this, { plot, points, describe, select, at: -1 });
    this.ring = svg("circle", { r: 9, class: "ring", hidden: true });
    this.choice = svg("circle", { r: 7, class: "choice", hidden: true });
    plot.append(this.choice, this.ring);
    this.output = html("p", { class: "readout" }, "\u00a0");
    plot.addEventListener("pointermove", (event) => this.visit(this.nearest(event), false));
    plot.addEventListener("pointerleave", () => this.leave());
    plot.addEventListener("click", (event) => this.click(event));
    plot.addEventListener("keydown", (event) => this.key(event));
    plot.addEventListener("focus", () => this.enter());
    plot.addEventListener("blur", () => this.leave());
  }

  nearest(event, reach = 18) {
    const matrix = this.plot.getScreenCTM();
    if (!matrix) return -1;
    const spot = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
    let best = -1, least = reach * reach;
    this.points.forEach((point, i) => {
      const distance = (point.x - spot.x) ** 2 + (point.y - spot.y) ** 2;
      if (distance < least) { best = i; least = distance; }
    });
    return best;
  }

  click(event) {
    const place = this.nearest(event);
    if (place >= 0) this.choose(place);
  }

  enter() {
    if (!this.points.length || !this.plot.matches(":focus-visible")) return;
    this.visit(Math.max(this.at, 0), true);
  }

  leave() {
    this.ring.setAttribute("hidden", "");
    this.output.textContent = "\u00a0";
  }

  visit(place, aloud) {
    if (place < 0) { this.leave(); return; }
    this.at = place;
    const point = this.points[place];
    this.ring.setAttribute("cx", point.x);
    this.ring.setAttribute("cy", point.y);
    this.ring.removeAttribute("hidden");
    this.output.textContent = this.describe(point.key);
    if (aloud) say(this.describe(point.key));
  }

  key(event) {
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1],
      ArrowDown: [0, 1] }[event.key];
    if (direction) {
      event.preventDefault();
      this.visit(this.towards(direction), true);
    } else if ((event.key === "Enter" || event.key === " ") && this.at >= 0) {
      event.preventDefault();
      this.choose(this.at);
    }
  }

  /** The nearest point in a direction, sideways distance counting double. */
  towards([dx, dy]) {
    const from = this.points[Math.max(this.at, 0)];
    let best = Math.max(this.at, 0), least = Infinity;
    this.points.forEach((point, i) => {
      const along = (point.x - from.x) * dx + (point.y - from.y) * dy;
      const aside = Math.abs((point.x - from.x) * dy - (point.y - from.y) * dx);
      if (along > 1e-9 && aside <= 2 * along && along + 2 * aside < least) {
        best = i;
        least = along + 2 * aside;
      }
    });
    return best;
  }

  choose(place) {
    this.at = place;
    this.select(this.points[place].key);
  }

  /** Show which point is selected, here or elsewhere. */
  show(key) {
    const place = this.points.findIndex((point) => point.key === key);
    this.choice.toggleAttribute("hidden", place < 0);
    if (place < 0) return;
    this.at = place;
    this.choice.setAttribute("cx", this.points[place].x);
    this.choice.setAttribute("cy", this.points[place].y);
  }
}

function mapLegend(page, labels) {
  const seen = [...new Set(labels)].sort((a, b) => (a === null) - (b === null) || a - b);
  return html("ul", { class: "legend classes" }, seen.map((label) => html("li", {},
    svg("svg", { viewBox: "-8 -8 16 16", width: 14, height: 14, "aria-hidden": "true" },
      svg("path", { d: classShape(label, 5), class: `point ${classStyle(label)}` })),
    label === null ? "no label" : named(page.classes[label]))));
}

/** The map of states; selecting a point calls `open` with its number. */
class StateMap {
  constructor(page, people, open) {
    const map = page.map, size = 640, edge = 18;
    const heights = map.positions.map((position) => position[1]);
    const low = Math.min(...heights), high = Math.max(...heights);
    this.what = map.of === "graphs" ? "graph" : "node";
    const points = map.items.map((key, i) => ({ key,
      x: edge + map.positions[i][0] * (size - 2 * edge),
      y: edge + (high - map.positions[i][1]) * (size - 2 * edge) }));
    const height = 2 * edge + (high - low) * (size - 2 * edge);
    this.plot = svg("svg", { viewBox: `0 0 ${size} ${height.toFixed(1)}`, class: "map",
      tabindex: 0, id: "map-plot",
      role: "application", "aria-label": `Map of ${map.items.length} ${map.of}`,
      "aria-describedby": "map-help" });
    const radius = map.items.length > 800 ? 3 : 4.5;
    for (const point of points) {
      const one = people.get(point.key);
      const wrong = one.prediction !== null && one.label !== null && one.prediction !== one.label;
      this.plot.append(svg("path", { d: classShape(one.label, radius),
        transform: `translate(${point.x.toFixed(1)} ${point.y.toFixed(1)})`, "data-key": point.key,
        class: `point ${classStyle(one.label)}${wrong ? " wrong" : ""}` }));
    }
    this.field = new PointField(this.plot, points, (key) => people.get(key).sentence(), open);
    this.labels = map.items.map((key) => people.get(key).label);
    this.anyWrong = this.plot.querySelector(".wrong") !== null;
    this.element = this.build(page, people, open);
  }

  build(page, people, open) {
    const map = page.map;
    const message = html("span", { class: "readout", role: "status" });
    const input = html("input", { type: "search", id: "search", autocomplete: "off",
      placeholder: `identifier of a ${this.what}` });
    const find = (event) => {
      event.preventDefault();
      const key = search(input.value, map.items, people);
      message.textContent = key === null ? `No ${this.what} here is called “${input.value}”.` : "";
      if (key !== null) open(key);
    };
    return section("map", "Map of states",
      html("p", { class: "lead" }, `${map.which} ${map.how}`,
        this.anyWrong ? " Hollow points are predicted wrongly." : ""),
      html("form", { class: "controls", submit: find },
        html("label", { for: "search" }, `Find a ${this.what}`), input,
        html("button", { type: "submit" }, "Show"), message),
      savable("Map of states", html("figure", {}, mapLegend(page, this.labels), this.plot,
        this.field.output)),
      html("p", { class: "help", id: "map-help" }, "Point at or click a mark; or focus the map, move "
        + "with the arrow keys to the nearest point in that direction, and press Enter."));
  }
}

/** The item a text means: the same identifier, one that begins so, one that contains it. */
function search(text, items, people) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return null;
  const tests = [(id) => id === wanted, (id) => id.startsWith(wanted), (id) => id.includes(wanted)];
  for (const test of tests) {
    const found = items.find((key) => test(people.get(key).id.toLowerCase()));
    if (found !== undefined) return found;
  }
  return null;
}
