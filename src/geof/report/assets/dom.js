// Small helpers: elements are made, never parsed; text is text.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

/** Make an HTML element; functions among the attributes are listeners, strings become text. */
function html(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Make an SVG element likewise. */
function svg(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** A name from the data, kept apart from the direction of the text around it. */
function named(text) {
  return html("bdi", {}, String(text));
}

function decimals(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  return value.toFixed(digits).replace("-", "−");
}

function compact(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en").replace("-", "−");
  const size = Math.abs(value);
  const text = size >= 1e-3 && size < 1e6 ? String(+value.toPrecision(4)) : value.toExponential(2);
  return text.replace("-", "−");
}

function percent(share, digits = 1) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)} %`;
}

function say(text) {
  document.getElementById("live").textContent = text;
}

function calm() {
  return window.matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** A section with a heading; the contents list is made from these. */
function section(id, title, ...children) {
  return html("section", { id, "aria-labelledby": `${id}-title` },
    html("h2", { id: `${id}-title` }, title), ...children);
}

/** A figure; what it is called names the file it can be saved to. */
function figure(name, caption, ...children) {
  return savable(name, html("figure", {}, ...children, html("figcaption", {}, caption)));
}

/** A figure whose caption is its title, and stands above it. */
function titled(title, ...children) {
  return savable(title,
    html("figure", {}, html("figcaption", { class: "title" }, title), ...children));
}

function folded(summary, ...children) {
  return html("details", {}, html("summary", {}, summary), ...children);
}

/** What may be wider than the screen: it scrolls by itself, and says so where there is more. */
function scrolling(label, ...children) {
  const inside = html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    ...children);
  const cue = html("p", { class: "cue", "aria-hidden": "true", hidden: true },
    "Wider than the screen: swipe or scroll sideways \u2192");
  const look = () => {
    const hidden = inside.scrollWidth - inside.clientWidth;
    cue.toggleAttribute("hidden", hidden <= 1);
    inside.classList.toggle("more-left", inside.scrollLeft > 1);
    inside.classList.toggle("more-right", inside.scrollLeft < hidden - 1);
  };
  inside.addEventListener("scroll", look, { passive: true });
  const watch = new ResizeObserver(look);
  watch.observe(inside);
  children.flat(Infinity).forEach((child) => { if (child instanceof Element) watch.observe(child); });
  return html("div", { class: "scroller" }, cue, inside);
}

/** A list of names and values; values may be nested. */
function facts(pairs) {
  return html("dl", { class: "facts" }, pairs.map(([name, value]) =>
    html("div", {}, html("dt", {}, named(name)), html("dd", {}, named(value)))));
}

function asText(value) {
  if (value === null || value === undefined) return "none";
  if (Array.isArray(value)) return value.map(asText).join(", ") || "none";
  if (typeof value === "object") return JSON.stringify(value);
  return typeof value === "boolean" ? (value ? "yes" : "no") : String(value);
}

/** What is not there and why, folded when it is long. */
function missingNote(title, sentences) {
  if (!sentences.length) return null;
  const list = html("ul", {}, sentences.map((text) => html("li", {}, named(text))));
  const few = sentences.length <= 6;
  return html("div", { class: "missing", role: "note" }, html("b", {}, title),
    few ? list : folded(`${sentences.length} entries`, list));
}

/** Nested options as lists within lists. */
function tree(options) {
  const plain = [], nested = [];
  if (!Object.keys(options).length) return html("p", { class: "help" }, "not recorded");
  for (const [name, value] of Object.entries(options)) {
    const inner = value && typeof value === "object" && !Array.isArray(value);
    (inner ? nested : plain).push([name, value]);
  }
  return html("div", { class: "tree" },
    plain.length ? facts(plain.map(([name, value]) => [name, asText(value)])) : null,
    nested.map(([name, value]) => [html("h4", {}, named(name)), tree(value)]));
}
