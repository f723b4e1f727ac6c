"use strict";
// Everything can be read and done without this file: it adds the chart, a way to the search field, and where the focus is.

document.addEventListener("keydown", (event) => {
  const types = event.target.closest("input, textarea, select, [contenteditable]");
  const asks = event.key === "k" && (event.ctrlKey || event.metaKey);
  if (asks || (event.key === "/" && !types && !event.ctrlKey && !event.metaKey && !event.altKey)) {
    const field = document.querySelector("[data-find]");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  }
});

// A form leads to a page anew. There, the focus goes to the button that now is where the pressed one was, and what was
// done describes it; without such a button, the focus is on what was done.
const buttons = () => [...document.querySelectorAll("main form[method=post] button")];
document.addEventListener("submit", (event) => {
  const at = buttons().indexOf(event.submitter);
  if (at >= 0) sessionStorage.setItem("pressed", JSON.stringify([location.pathname, at]));
});
const said = document.getElementById("said");
if (said) {
  const [path, at] = JSON.parse(sessionStorage.getItem("pressed") || "[]");
  const next = path === location.pathname && (buttons()[at] || buttons().at(-1));
  if (next) next.setAttribute("aria-describedby", "said");
  (next || said).focus({ preventScroll: !next || at < 2 });
}
sessionStorage.removeItem("pressed");

// After "Older …" was pressed by keyboard, the focus moves to the first of the older entries.
document.addEventListener("htmx:afterSwap", (event) => {
  const first = event.detail.requestConfig?.elt?.closest(".more") && event.detail.elt?.querySelector?.("a");
  if (first && document.activeElement === document.body) first.focus();
});

function monday(week) {
  const [year, number] = week.split("-W").map(Number);
  const fourth = new Date(Date.UTC(year, 0, 4)); // is in week 1
  return fourth.getTime() / 1000 + (number - 1 + (1 - (fourth.getUTCDay() || 7)) / 7) * 7 * 86400;
}

const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
function dated(at) { // as in all pages: 27 Nov 2026
  const day = new Date(at * 1e3);
  return `${day.getUTCDate()} ${MONTHS[day.getUTCMonth()]} ${day.getUTCFullYear()}`;
}

function draw(box) {
  const counts = Object.entries(JSON.parse(box.dataset.weeks)).map(([week, count]) => [monday(week), count]);
  let total = Number(box.dataset.before);
  const data = [counts.map((one) => one[0]), counts.map((one) => one[1]), counts.map((one) => (total += one[1]))];
  const probe = box.appendChild(document.createElement("i")); // a canvas takes no variables
  const colour = (name) => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; };
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const isLong = counts.length > 26;
  const tick = (at) => dated(at).split(" ").slice(isLong ? 1 : 0, isLong ? 3 : 2).join(" ");
  const [bar, accent] = [colour("--bar"), colour("--accent")];
  const first = data[0][0], last = data[0][data[0].length - 1], room = 7 * 86400;
  box.replaceChildren();
  const plot = new uPlot({
    width: box.clientWidth - 2 * parseFloat(getComputedStyle(box).paddingLeft), height: 260, tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
    scales: { x: { range: [first - room, last + room] }, y: { range: (_, low, high) => [0, high * 1.1 || 1] },
              all: { range: (_, low, high) => [0, high * 1.1 || 1] } },
    axes: [{ ...axis, values: (_, at) => at.map(tick), space: 80 },
      { ...axis, size: 56, label: "new in the week", labelSize: 20 },
      { ...axis, scale: "all", side: 1, size: 64, label: "in all", labelSize: 20, grid: { show: false } }],
    series: [{ label: "Week of", value: (_, at) => dated(at ?? last) }, // the last week, until one is pointed at
      { label: "new in the week", fill: bar, width: 0, points: { show: false }, value: (_, n) => (n ?? data[1].at(-1)).toLocaleString("en-US"),
        paths: uPlot.paths.bars({ size: [0.7, 40] }) },
      { label: "in all", scale: "all", stroke: accent, width: 2, points: { show: counts.length < 3 },
        value: (_, n) => (n ?? data[2].at(-1)).toLocaleString("en-US") }],
  }, data, box);
  return plot;
}

const plots = [];
function redraw() {
  for (const plot of plots.splice(0)) plot.destroy();
  for (const box of document.querySelectorAll(".chart[data-weeks]")) plots.push(draw(box));
}
if (window.uPlot) {
  redraw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(redraw, 150); });
}
