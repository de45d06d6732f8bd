"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const slider = document.getElementById("size"), readout = document.getElementById("readout");
const boxes = [...document.querySelectorAll("fieldset input")];
const colour = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const FONT = "12px system-ui, sans-serif", DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [4, 2], [14, 4], [1, 5]];
// The main policy has the first of seven styles, whatever its place.
const style = policy => (policy === data.main ? 0 : policy < data.main ? policy + 1 : policy) % DASHES.length;
const paint = policy => colour("p" + style(policy)), dash = policy => DASHES[style(policy)];
const isShown = policy => boxes[policy].checked;
const sizes = data.sizes, first = sizes[0], last = sizes[sizes.length - 1];
// The curve of one policy may have points between the sizes that were planned; the others have none there.
const grid = data.fine.length ? data.fine.map(([size]) => size) : sizes;
const at = new Map(sizes.map((size, index) => [size, index]));
const curves = data.policies.map(({shares, fine}) =>
  fine ? data.fine.map(([, share]) => share) : grid.map(size => at.has(size) ? shares[at.get(size)] : null));

const short = value => String(Number(value.toPrecision(Math.abs(value) < 1 ? 2 : 6)));
function sizeTicks(u) {  // the sizes that were planned, as many as there is room for
  const room = size => 8 + 7 * short(size).length, kept = [];
  for (const size of sizes) {
    const before = kept[kept.length - 1];
    if (before === undefined || u.valToPos(size, "x") - u.valToPos(before, "x") >= (room(size) + room(before)) / 2) kept.push(size);
  }
  return kept;
}
function axis(label, more) {
  const line = {stroke: () => colour("line"), width: 1};
  return {label, stroke: () => colour("soft"), font: FONT, labelFont: FONT, labelSize: 22, grid: line, ticks: line, ...more};
}
function text(u, words, x, y, align, name) {
  const pen = u.ctx, scale = uPlot.pxRatio;
  pen.font = `600 ${12 * scale}px system-ui, sans-serif`;
  pen.textBaseline = "middle";
  const wide = pen.measureText(words).width, {left, width} = u.bbox;
  const start = {left: x, center: x - wide / 2, right: x - wide}[align];
  const place = Math.max(left, Math.min(start, left + width - wide)), half = 8 * scale;
  pen.textAlign = "left";
  pen.fillStyle = colour("card");
  pen.fillRect(place, y - half, wide, 2 * half);
  pen.fillStyle = colour(name);
  pen.fillText(words, place, y);
}
function line(u, x1, y1, x2, y2, name, dashes, wide) {
  const pen = u.ctx, scale = uPlot.pxRatio;
  pen.beginPath();
  pen.strokeStyle = colour(name);
  pen.lineWidth = wide * scale;
  pen.setLineDash(dashes.map(length => length * scale));
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
  pen.stroke();
}
// What is recommended, and the size that is read.
function mark(u, value, name) {
  const {left, top, height} = u.bbox, scale = uPlot.pxRatio, chosen = data.chosen;
  u.ctx.save();
  const upright = (size, ...how) => {
    const x = u.valToPos(size, "x", true);
    line(u, x, top, x, top + height, ...how);
    return x;
  };
  const read = upright(sizes[slider.value], "soft", [2, 3], 1);
  const x = chosen === null ? left : upright(sizes[chosen], "mark", [6, 4], 2);
  text(u, "recommended: " + data.chosen_text, x, top - 11 * scale, chosen === null ? "left" : "center", "mark");
  u.ctx.beginPath();
  u.ctx.setLineDash([]);
  u.ctx.lineWidth = 2 * scale;
  u.ctx.strokeStyle = colour(name);
  u.ctx.fillStyle = colour("card");
  u.ctx.arc(read, u.valToPos(value, "y", true), 6 * scale, 0, 2 * Math.PI);
  u.ctx.fill();
  u.ctx.stroke();
  u.ctx.restore();
}
function errors(u) {  // standard errors of samples
  u.ctx.save();
  data.policies.forEach((policy, index) => isShown(index) && policy.errors.forEach((error, i) => {
    const x = u.valToPos(sizes[i], "x", true), y = share => u.valToPos(share, "y", true);
    if (error) line(u, x, y(policy.shares[i] - error), x, y(policy.shares[i] + error), "p" + style(index), [], 1.5);
  }));
  u.ctx.restore();
}
// A round number of at most five steps, and not below the highest value.
function roundUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return unit * [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find(times => times * unit >= value * (1 - 1e-9));
}
// `lowest`: what the scale begins with, if it is not to begin with 0 but to be logarithmic.
function plot(id, yLabel, highest, series, columns, hook, lowest) {
  const box = document.getElementById(id), near = Math.SQRT2 ** .5;
  const top = highest > 0 ? roundUp(highest) : 1;
  const yScale = lowest ? {distr: 3, log: 10, range: () => [lowest, top]} : {range: () => [0, top]};
  const some = splits => splits.map(value => value === null ? "" : short(value));
  return new uPlot({
    width: box.clientWidth, height: box.clientHeight, padding: [24, 14, 0, 0], legend: {show: false}, cursor: {show: false},
    scales: {x: {time: false, distr: 3, log: 2, range: () => [first / near, last * near]}, y: yScale},
    axes: [
      axis("host memory, GiB (log scale)", {splits: sizeTicks, filter: (u, splits) => splits, size: 32,
        values: (u, splits) => splits.map(size => short(size))}),
      axis(lowest ? yLabel + " (log scale)" : yLabel, {size: 46, values: (u, splits) => some(splits)}),
    ],
    series: [{}, ...series],
    hooks: {draw: [hook]},
  }, columns, box);
}
const planned = grid.map((size, index) => at.has(size) ? index : -1).filter(index => index >= 0);
function curve(index) {
  return {
    show: isShown(index), label: data.policies[index].name, stroke: () => paint(index), dash: dash(index), spanGaps: true,
    width: index === data.main ? 3 : 2,
    points: {show: true, size: 6, fill: () => paint(index), filter: (u, i, show) => show ? planned : null},
  };
}
const main = data.policies[data.main], ttft = data.ttft;
const most = Math.max(...data.policies.flatMap(policy => policy.shares.map((share, i) => share + policy.errors[i])));
const gainPlot = plot("gain", "added, % of prompt tokens", most, data.policies.map((_, index) => curve(index)), [grid, ...curves],
  u => { errors(u); mark(u, main.shares[slider.value], "p0"); });
const ttftLine = {label: "TTFT", stroke: () => colour("p0"), width: 3, points: {show: true, size: 6, fill: () => colour("p0")}};
const slowest = 1.1 * Math.max(ttft.without, ...ttft.values), fastest = Math.min(ttft.without, ...ttft.values);
const ground = ttft.far_apart ? 10 ** Math.floor(Math.log10(fastest)) : 0;
const ttftPlot = plot("ttft", `time to first token, ${ttft.unit}`, slowest, [ttftLine], [sizes, ttft.values], u => {
  const y = u.valToPos(ttft.without, "y", true), {left, top, width} = u.bbox, scale = uPlot.pxRatio;
  const below = y - top < 22 * scale;  // above it is what is recommended
  u.ctx.save();
  line(u, left, y, left + width, y, "soft", [], 1);
  mark(u, ttft.values[slider.value], "p0");
  text(u, `without host memory: ${ttft.without_text}`, left + width, y + (below ? 11 : -10) * scale, "right", "soft");
  u.ctx.restore();
}, ground);

function read() {
  const index = Number(slider.value);
  const shown = data.policies.filter((_, policy) => isShown(policy));
  const added = shown.map(({name, texts}) => `${name} adds ${texts[index]}`).join(", ");
  const words = `${data.size_texts[index]}: ${added}; first token after ${ttft.texts[index]} (${ttft.without_text} without).`;
  readout.textContent = words;
  slider.setAttribute("aria-valuetext", words);
  gainPlot.redraw(false, false);
  ttftPlot.redraw(false, false);
}
function point(u, event) {  // read the size nearest to the pointer
  const place = event.clientX - u.over.getBoundingClientRect().left;
  const far = index => Math.abs(u.valToPos(sizes[index], "x") - place);
  slider.value = [...sizes.keys()].reduce((best, index) => far(index) < far(best) ? index : best, 0);
  read();
}
for (const u of [gainPlot, ttftPlot]) {
  for (const event of ["pointermove", "pointerdown"]) u.over.addEventListener(event, moved => point(u, moved));
  new ResizeObserver(([{contentRect}]) => u.setSize(contentRect)).observe(u.root.parentElement);
}
function swatches() {  // the same line in front of the name
  document.querySelectorAll("fieldset canvas").forEach((canvas, index) => {
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.strokeStyle = paint(index);
    pen.lineWidth = index === data.main ? 6 : 4;
    pen.setLineDash(dash(index).map(length => 2 * length));
    pen.beginPath();
    pen.moveTo(0, canvas.height / 2);
    pen.lineTo(canvas.width, canvas.height / 2);
    pen.stroke();
  });
}
boxes.forEach((box, index) => box.addEventListener("change", () => {
  gainPlot.setSeries(index + 1, {show: box.checked});
  read();
}));
slider.addEventListener("input", read);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { swatches(); read(); });
swatches();
read();
})();
