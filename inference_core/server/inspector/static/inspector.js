"use strict";
// Everything can be read without this file: it adds the chart, a way to the search field, and focus after swaps.

document.addEventListener("keydown", (event) => {
  if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
    const field = document.querySelector("[data-find]");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  }
});

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

function draw(box) {
  const counts = Object.entries(JSON.parse(box.dataset.weeks)).map(([week, count]) => [monday(week), count]);
  let total = Number(box.dataset.before);
  const data = [counts.map((one) => one[0]), counts.map((one) => one[1]), counts.map((one) => (total += one[1]))];
  const probe = box.appendChild(document.createElement("i")); // a canvas takes no variables
  const colour = (name) => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; };
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const [bar, accent] = [colour("--bar"), colour("--accent")];
  const first = data[0][0], last = data[0][data[0].length - 1], room = 7 * 86400;
  box.replaceChildren();
  const plot = new uPlot({
    width: box.clientWidth, height: 260, tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
    scales: { x: { range: [first - room, last + room] }, y: { range: (_, low, high) => [0, high * 1.1 || 1] },
              all: { range: (_, low, high) => [0, high * 1.1 || 1] } },
    axes: [axis, { ...axis, size: 56 }, { ...axis, scale: "all", side: 1, size: 64, grid: { show: false } }],
    series: [{ value: "{YYYY}-{MM}-{DD}" },
      { label: "new in the week", fill: bar, width: 0, points: { show: false },
        paths: uPlot.paths.bars({ size: [0.7, 40] }) },
      { label: "in all", scale: "all", stroke: accent, width: 2, points: { show: counts.length < 3 } }],
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
