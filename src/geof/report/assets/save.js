// Figures as files: drawings with their colours and legends as SVG, the confusion matrix as CSV.

const KEPT = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray",
  "stroke-linejoin", "opacity", "font-size", "font-family", "font-weight", "text-anchor"];
const LINE = 20;

/** A colour every program reads: #rrggbb, and its opacity apart. */
function plainColour(text) {
  const mixed = text.match(/^color\(srgb ([\d.e-]+) ([\d.e-]+) ([\d.e-]+)(?: \/ ([\d.e-]+))?\)$/);
  const plain = text.match(/^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/);
  const found = mixed || plain;
  if (!found) return [text, 1];
  const parts = found.slice(1, 4).map((part) => Math.round(Number(part) * (mixed ? 255 : 1)));
  const hex = parts.map((part) => Math.max(0, Math.min(255, part)).toString(16).padStart(2, "0"));
  return [`#${hex.join("")}`, found[4] === undefined ? 1 : Number(found[4])];
}

/** Write what the style sheet says of an element onto its copy, which leaves the page. */
function withStyle(element, copy) {
  const style = getComputedStyle(element);
  const values = Object.fromEntries(KEPT.map((name) => [name, style.getPropertyValue(name)]));
  for (const name of ["fill", "stroke"]) {
    const [colour, opacity] = plainColour(values[name]);
    values[name] = colour;
    values[`${name}-opacity`] = String(Number(values[`${name}-opacity`]) * opacity);
  }
  for (const name of ["class", "style", "tabindex", "role", "id"]) copy.removeAttribute(name);
  for (const [name, value] of Object.entries(values)) copy.setAttribute(name, value);
  const outside = [...copy.children];
  [...element.children].forEach((child, i) => {
    if (getComputedStyle(child).display === "none" || child.classList.contains("ring")) {
      outside[i].remove();
    } else withStyle(child, outside[i]);
  });
  return copy;
}

function writing(x, y, text, size = 12) {
  return svg("text", { x, y, fill: plainColour(getComputedStyle(document.body).color)[0],
    "font-size": size, "font-family": "sans-serif" }, text);
}

/** The entries of a legend, in lines as wide as the drawing; returns them and their height. */
function savedLegend(entries, width) {
  const parts = [];
  let x = 4, y = 0;
  for (const entry of entries) {
    const mark = entry.querySelector("path"), swatch = entry.querySelector(".swatch");
    const text = entry.textContent, room = 26 + 6.6 * [...text].length;
    if (x > 4 && x + room > width) { x = 4; y += LINE; }
    if (mark) {
      const copy = withStyle(mark, mark.cloneNode(true));
      copy.setAttribute("transform", `translate(${x + 8} ${y + LINE / 2})`);
      parts.push(copy);
    } else if (swatch) {
      const [colour] = plainColour(getComputedStyle(swatch).backgroundColor);
      parts.push(svg("rect", { x, y: y + LINE / 2 - 2, width: 18, height: 4, fill: colour }));
    }
    parts.push(writing(x + 22, y + LINE / 2 + 4, text));
    x += room;
  }
  return [parts, entries.length ? y + LINE : 0];
}

/** Put the drawings of a figure beside and below each other, each with the words under it. */
function savedDrawing(figure) {
  const drawings = [...figure.querySelectorAll("svg")].filter((one) => !one.closest(".legend"));
  const boxes = drawings.map((one) => one.viewBox.baseVal);
  const columns = Math.min(drawings.length, 4), rows = Math.ceil(drawings.length / columns);
  const words = drawings.map((one) => (drawings.length > 1 ? one.parentElement.innerText : "")
    .split("\n").filter((line) => line.trim()));
  const below = LINE * Math.max(...words.map((lines) => lines.length));
  const wide = Math.max(...boxes.map((box) => box.width)) + (drawings.length > 1 ? 16 : 0);
  const high = Math.max(...boxes.map((box) => box.height)) + below;
  const width = columns * wide;
  const [legend, more] = savedLegend([...figure.querySelectorAll(".legend > li")], width);
  const height = rows * high + more;
  const whole = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height }, svg("rect", { width,
    height, fill: plainColour(getComputedStyle(document.body).backgroundColor)[0] }));
  drawings.forEach((one, i) => {
    const left = (i % columns) * wide, top = Math.floor(i / columns) * high, box = boxes[i];
    const copy = withStyle(one, one.cloneNode(true));
    for (const [name, value] of Object.entries({ x: left, y: top, width: box.width,
      height: box.height })) copy.setAttribute(name, value);
    whole.append(copy, ...words[i].map((line, k) =>
      writing(left + 4, top + box.height + 14 + LINE * k, line.trim())));
  });
  whole.append(svg("g", { transform: `translate(0 ${rows * high})` }, legend));
  return new XMLSerializer().serializeToString(whole);
}

/** A table's cells, quoted; one that a spreadsheet would run gets an apostrophe. */
function savedTable(element) {
  const cell = (one) => {
    const text = (one.dataset.value ?? one.textContent).trim();
    return `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  };
  return [...element.rows].map((row) => [...row.cells].map(cell).join(",")).join("\r\n") + "\r\n";
}

function fileName(name, kind) {
  const words = `${document.title} ${name}`.normalize("NFKD").toLowerCase()
    .replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  return `${words.slice(0, 90) || "figure"}.${kind}`;
}

function offer(name, kind, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  html("a", { href: address, download: fileName(name, kind) }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
  say(`Saved ${name}`);
}

/** Put a button below a figure that saves what it shows at that moment. */
function savable(name, figure) {
  const image = figure.querySelector("img"), cells = figure.querySelector("table");
  const kind = image ? image.src.match(/^data:image\/(\w+)/)[1] : cells ? "csv" : "svg";
  const save = () => {
    if (image) html("a", { href: image.src, download: fileName(name, kind) }).click();
    else if (cells) offer(name, kind, "text/csv", savedTable(cells));
    else offer(name, kind, "image/svg+xml", savedDrawing(figure));
  };
  figure.append(html("button", { type: "button", class: "quiet save", click: save,
    "aria-label": `Download ${name} as ${kind.toUpperCase()}` }, `Download ${kind.toUpperCase()}`));
  return figure;
}
