"""The plan as one HTML page that needs nothing else: curves, hover, what is recommended, the table."""

from __future__ import annotations

import html
import json

from kvtide.traces.plan import PlanResult
from kvtide.traces.plots import COLOURS
from kvtide.units import percent_text, seconds_text, size_text

_STYLE = """
:root{color-scheme:light dark;--ink:#1f2328;--soft:#6e7781;--line:#d0d7de;--paper:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#8d96a0;--line:#30363d;--paper:#0d1117}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:960px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.4rem}p.result{font-size:1.1rem}svg{width:100%;height:auto;touch-action:none}
.grid{stroke:var(--line);stroke-width:1}.label{fill:var(--soft);font-size:12px}.chosen{stroke:var(--soft);
stroke-dasharray:5 4}.hover{stroke:var(--ink);opacity:.5}
#tip{display:flex;flex-wrap:wrap;column-gap:1.2em;min-height:3.2em;font-variant-numeric:tabular-nums}
#tip b{margin-right:.3em}#tip span{
white-space:nowrap}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{text-align:right;padding:.25rem .6rem;
border-bottom:1px solid var(--line)}th:first-child,td:first-child{text-align:left}footer{color:var(--soft);
font-size:.85rem;margin-top:1.5rem}.legend span{margin-right:1.2em;white-space:nowrap}.legend i{display:inline-block;
width:.8em;height:.8em;border-radius:50%;margin-right:.35em}
"""

_SCRIPT = """
const data = JSON.parse(document.getElementById("data").textContent);
const svg = document.getElementById("plot"), tip = document.getElementById("tip"), NS = svg.namespaceURI;
const W = 900, H = 420, L = 56, R = 16, T = 12, B = 44;
const sizes = data.sizes, low = Math.log2(sizes[0]), high = Math.log2(sizes[sizes.length - 1]);
const highest = Math.max(5, Math.ceil(Math.max(...data.curves.flatMap(c => c.added)) * 20) * 5);
const x = s => L + (W - L - R) * (high > low ? (Math.log2(s) - low) / (high - low) : .5);
const y = p => H - B - (H - T - B) * p / highest;
function draw(name, attributes, text) {
  const node = document.createElementNS(NS, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  return svg.appendChild(node);
}
const step = highest > 50 ? 20 : highest > 20 ? 10 : 5;
for (let p = 0; p <= highest; p += step) {
  draw("line", {class: "grid", x1: L, x2: W - R, y1: y(p), y2: y(p)});
  draw("text", {class: "label", x: L - 8, y: y(p) + 4, "text-anchor": "end"}, p + "%");
}
sizes.forEach((s, i) => draw("text", {class: "label", x: x(s), y: H - B + 20, "text-anchor": "middle"},
  data.size_texts[i]));
if (data.chosen) {
  draw("line", {class: "chosen", x1: x(data.chosen), x2: x(data.chosen), y1: T, y2: H - B});
  draw("text", {class: "label", x: x(data.chosen) + 5, y: H - B - 8}, "recommended: " + data.chosen_text);
}
const place = p => x(p[0]).toFixed(1) + " " + y(100 * p[1]).toFixed(1);
const path = points => points.map((p, i) => (i ? "L" : "M") + place(p)).join("");
data.curves.forEach(c => {
  const line = c.fine.length ? c.fine : sizes.map((s, i) => [s, c.added[i]]);
  draw("path", {d: path(line), fill: "none", stroke: c.colour, "stroke-width": 2});
  sizes.forEach((s, i) => draw("circle", {cx: x(s), cy: y(100 * c.added[i]), r: 3.5, fill: c.colour}));
});
const cursor = draw("line", {class: "hover", y1: T, y2: H - B, x1: -9, x2: -9});
function show(event) {
  const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * W;
  let near = 0;
  sizes.forEach((s, i) => { if (Math.abs(x(s) - at) < Math.abs(x(sizes[near]) - at)) near = i; });
  cursor.setAttribute("x1", x(sizes[near])); cursor.setAttribute("x2", x(sizes[near]));
  const texts = [[data.size_texts[near], "TTFT " + data.ttft_texts[near]],
    ...data.curves.map(c => [c.policy, c.texts[near]])];
  tip.replaceChildren(...texts.map(([a, b]) => {
    const span = document.createElement("span"), bold = document.createElement("b");
    bold.textContent = a; span.append(bold, b);
    return span;
  }));
}
svg.addEventListener("pointermove", show);
svg.addEventListener("pointerdown", show);
"""


def plan_page(plan: PlanResult, title: str, conclusion: str, notes: str) -> str:
    """Return the page. Everything that comes from outside is escaped."""
    data = json.dumps(_data(plan)).replace("<", "\\u003c")
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{html.escape(policy)}</span>'
        for colour, policy in zip(COLOURS * 2, plan.curves, strict=False)
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
<p class="result">{html.escape(conclusion)}</p>
<p>Prompt tokens that host memory adds to the {percent_text(plan.device_share)} that the device serves:</p>
<p class="legend">{legend}</p>
<svg id="plot" viewBox="0 0 900 420" role="img" aria-label="prompt tokens that host memory adds"></svg>
<p id="tip">Point at the plot to read the numbers.</p>
{_table(plan)}
<footer>{html.escape(notes)}</footer>
<script type="application/json" id="data">{data}</script>
<script>(() => {{{_SCRIPT}}})();</script>
</body></html>
"""


def _data(plan: PlanResult) -> dict[str, object]:
    first = next(iter(plan.curves.values()))
    sizes = [point.host_bytes for point in first]
    fine = [(size, added) for size, added in plan.lru_curve if sizes[0] <= size <= sizes[-1]]
    fine = fine[:: max(1, len(fine) // 400)]
    return {
        "sizes": sizes,
        "size_texts": [size_text(size) for size in sizes],
        "ttft_texts": [seconds_text(ttft_s) for ttft_s in plan.ttft_s],
        "chosen": plan.recommendation.host_bytes,
        "chosen_text": size_text(plan.recommendation.host_bytes),
        "curves": [
            {
                "policy": policy,
                "colour": colour,
                "added": [point.added_share for point in points],
                "texts": [percent_text(point.added_share) for point in points],
                "fine": fine if policy == "lru" else [],
            }
            for colour, (policy, points) in zip(COLOURS * 2, plan.curves.items(), strict=False)
        ],
    }


def _table(plan: PlanResult) -> str:
    heads = "".join(f"<th>{html.escape(policy)}</th>" for policy in plan.curves)
    rows = []
    rows.append(f"<tr><td>none</td>{'<td></td>' * len(plan.curves)}<td>{seconds_text(plan.ttft_without_s)}</td></tr>")
    for row, ttft_s in zip(zip(*plan.curves.values(), strict=True), plan.ttft_s, strict=True):
        cells = "".join(
            f"<td>{percent_text(point.added_share)}" + (f" ± {100 * point.error:.1f}" if point.error else "") + "</td>"
            for point in row
        )
        rows.append(f"<tr><td>{size_text(row[0].host_bytes)}</td>{cells}<td>{seconds_text(ttft_s)}</td></tr>")
    return f"<table><tr><th>host memory</th>{heads}<th>mean TTFT</th></tr>{''.join(rows)}</table>"
