"""Bars as SVG: medians, with a line that goes on to the 90th percentile. Readable on light and dark pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.sax.saxutils import escape

_WIDTH, _LEFT, _RIGHT = 860, 325, 130
_FIRST_Y, _STEP_Y, _BAR_Y = 62, 36, 24
TITLE = "First token of a follow-up: the median, and the time within which nine of ten come"
_STYLE = """
    text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #24292f }
    .title { font-weight: 600; font-size: 15px }
    .small { font-size: 12.5px; fill: #57606a }
    .page { fill: #ffffff }
    .bar { fill: #afb8c1 } .ours { fill: #0969da }
    .line { stroke: #57606a; stroke-width: 2 }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117 }
      text { fill: #e6edf3 }
      .small { fill: #9198a1 }
      .bar { fill: #656c76 } .ours { fill: #4493f8 }
      .line { stroke: #9198a1 }
    }
"""


def picture(bars: Mapping[str, tuple[float, float]], *, ours: str, below: str) -> str:
    """Return a bar for each name: its median, and its 90th percentile."""
    per_ms = (_WIDTH - _LEFT - _RIGHT) / max(max(values) for values in bars.values())
    height = _FIRST_Y + _STEP_Y * len(bars) + 34
    words = ", ".join(f"{name} {median:,.0f} ({p90:,.0f})" for name, (median, p90) in bars.items())
    drawn = [
        _bar(name, median, p90, per_ms, _FIRST_Y + _STEP_Y * number, is_ours=name == ours)
        for number, (name, (median, p90)) in enumerate(bars.items())
    ]
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size}
     role="img" aria-label="Milliseconds to the first token of a follow-up, median (p90): {escape(words)}.">
  <style>{_STYLE}  </style>
  <!-- its own page, so that it is readable whatever surrounds it -->
  <rect class="page" width="{_WIDTH}" height="{height}" rx="8"/>
  <text x="20" y="34" class="title">{TITLE}</text>
{"".join(drawn)}  <text x="20" y="{height - 16}" class="small">{escape(below)}</text>
</svg>
"""


def _bar(name: str, median: float, p90: float, per_ms: float, y: int, *, is_ours: bool) -> str:
    width, end, middle = max(1.0, median * per_ms), _LEFT + p90 * per_ms, y + _BAR_Y / 2
    bold = ' class="title"' if is_ours else ""
    return f"""  <text x="{_LEFT - 12}" y="{y + 17}" text-anchor="end"{bold}>{escape(name)}</text>
  <rect class="{"ours" if is_ours else "bar"}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR_Y}" rx="3"/>
  <line class="line" x1="{_LEFT + width:.1f}" x2="{end:.1f}" y1="{middle}" y2="{middle}"/>
  <line class="line" x1="{end:.1f}" x2="{end:.1f}" y1="{middle - 5}" y2="{middle + 5}"/>
  <text x="{end + 10:.1f}" y="{y + 17}"{bold}>{median:,.0f}, {p90:,.0f} ms</text>
"""


def picture_in_words(svg: str) -> str:
    """Return what a picture says, for those who do not see it."""
    found = re.search(r'aria-label="([^"]+)"', svg)
    assert found is not None, "no picture of ours"
    return found[1]
