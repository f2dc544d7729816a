// Puts the page together: head, contents, theme, printing.

function themeButton() {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const button = html("button", { type: "button", id: "theme", class: "quiet" });
  const label = () => { button.textContent = isDark() ? "Light colours" : "Dark colours"; };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  system.addEventListener("change", label);
  label();
  return button;
}

/** Unfold everything for paper, and fold it again. */
function unfoldForPrint() {
  let opened = [], rows = [];
  window.addEventListener("beforeprint", () => {
    rows = [...document.querySelectorAll('button[aria-expanded="false"]')];
    rows.forEach((button) => button.click());
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((one) => { one.open = true; });
  });
  window.addEventListener("afterprint", () => {
    opened.forEach((one) => { one.open = false; });
    rows.forEach((button) => button.click());
  });
}

function main() {
  const page = JSON.parse(document.getElementById("data").textContent);
  const { parts, explored } = page.kind === "run" ? runPage(page) : resultsPage(page);
  const state = page.kind === "run" && !page.finished
    ? html("span", { class: "badge" }, "not finished") : null;
  document.getElementById("head").append(html("div", {},
    html("p", { class: "brand" }, page.kind === "run" ? "GeoF · run report" : "GeoF · results"),
    html("h1", {}, named(page.title), state)), themeButton());
  document.getElementById("main").append(...parts,
    ...(explored.length ? [html("div", { class: "explore" }, explored)] : []));
  const sections = [...parts, ...explored].filter((part) => part.id);
  const links = sections.map((part) => html("li", {},
    html("a", { href: `#${part.id}` }, part.querySelector("h2").textContent)));
  document.getElementById("contents").append(html("ul", {}, links));
  document.getElementById("foot").append(
    `Made by geof ${page.made.geof}. Everything is inside this file; it loads nothing.`);
  unfoldForPrint();
}

main();
