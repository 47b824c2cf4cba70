"""Results as a table for people, and as one HTML page with plots drawn in it: it opens from a file, with no network."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from .timing import Time

OURS = "flashdelta"
_UNITS = {"TFLOP/s": 1e-12, "TB/s": 1e-12, "a second": 1.0}
_MOST_PLOTTED = 24  # cases of one plot


@dataclass
class Row:
    name: str
    operation: str
    shape: str
    flops: float  # or what else the unit counts
    times: dict[str, Time] = field(default_factory=dict)
    unit: str = "TFLOP/s"

    def rate(self, who: str) -> float:
        time = self.times.get(who)
        return self.flops * _UNITS[self.unit] / time.median if time and time.median > 0 else 0.0

    def best_peer(self) -> tuple[str, float] | None:
        """The fastest peer and how much longer it takes than we do."""
        ours = self.times[OURS]
        peers = [(t.median, who) for who, t in self.times.items() if not who.startswith(OURS) and t.median > 0]
        if not peers or ours.median <= 0:
            return None
        median, who = min(peers)
        return who, median / ours.median


@dataclass
class Report:
    title: str
    facts: dict[str, str]
    rows: list[Row]
    overhead: dict[str, float]


def format_time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def table_line(row: Row, width: int) -> str:
    parts = []
    for who, time in row.times.items():
        shown = f"{format_time(time.median)}, {row.rate(who):.3g} {row.unit}" if time.median > 0 else time.why
        parts.append(f"{who} {shown}")
    best = row.best_peer()
    ratio = f"  [{best[1]:.2f}x of {best[0]}]" if best else ""
    return f"{row.name:<{width}}  " + " | ".join(parts) + ratio


_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1080px; margin: 2em auto; padding: 0 1em; color: #1c1e21; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; font-size: 0.9em; }
th, td { text-align: left; padding: 4px 8px; border-bottom: 1px solid #dde1e6; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } td.n { white-space: nowrap; }
td.why { color: #8a6d00; font-size: 0.85em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 1.2em; }
dt { color: #5b6570; } dd { margin: 0; overflow-wrap: anywhere; }
svg text { font: 12px system-ui, sans-serif; fill: #1c1e21; }
"""
_COLOURS = ["#1f6feb", "#e8833a", "#4aa564", "#9b5fc0", "#c0504d", "#7f8c99", "#0f9d9d", "#b8860b", "#444b54"]


def html(report: Report) -> str:
    """The page. Nothing in it is fetched."""
    facts = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in report.facts.items())
    sections = []
    for operation in dict.fromkeys(row.operation for row in report.rows):
        rows = [row for row in report.rows if row.operation == operation]
        cut = f"<p>The first {_MOST_PLOTTED} of {len(rows)} cases:</p>" if len(rows) > _MOST_PLOTTED else ""
        sections.append(f"<h2>{escape(operation)}</h2>{cut}{_plot(rows)}{_table(rows)}")
    if report.overhead:
        lines = "".join(f"<tr><td>{escape(k)}</td><td class=n>{v:.1f}</td></tr>" for k, v in report.overhead.items())
        sections.append(
            "<h2>What a call costs the host</h2>"
            "<p>Microseconds, small inputs, no graphs, the least of 15 rounds of 200 calls.</p>"
            f"<table><tr><th>call</th><th class=n>us</th></tr>{lines}</table>"
        )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(report.title)}</title>"
        f"<style>{_STYLE}</style><h1>{escape(report.title)}</h1><dl>{facts}</dl>{''.join(sections)}</html>\n"
    )


def _table(rows: list[Row]) -> str:
    who = list(dict.fromkeys(name for row in rows for name in row.times))
    head = "".join(f"<th class=n>{escape(name)}</th>" for name in who)
    lines = []
    for row in rows:
        cells = "".join(_cell(row, name) for name in who)
        best = row.best_peer()
        ratio = f"{best[1]:.2f} of {escape(best[0])}" if best else ""
        lines.append(f"<tr><td>{escape(row.name)}</td>{cells}<td class=n>{ratio}</td></tr>")
    return f"<table><tr><th>case</th>{head}<th class=n>times as fast as the best peer</th></tr>{''.join(lines)}</table>"


def _cell(row: Row, who: str) -> str:
    time = row.times.get(who)
    if time is None:
        return "<td class=n></td>"
    if time.median <= 0:
        return f"<td class=why>{escape(time.why)}</td>"
    spread = f"{format_time(time.least)} to {format_time(time.most)}"
    ours = row.times[OURS].median
    longer = "" if who == OURS or ours <= 0 else f"<br>{time.median / ours:.2f} of our time"
    return f'<td class=n title="{spread}">{format_time(time.median)}<br>{row.rate(who):.3g} {row.unit}{longer}</td>'


def _legend(names: list[str], left: float, right: float) -> tuple[list[str], int]:
    """Coloured squares with names, in as many lines as they need; and where the next thing may begin."""
    parts, x, y = [], left, 2
    for i, name in enumerate(names):
        wide = 34 + 6.6 * len(name)
        if x > left and x + wide > right:
            x, y = left, y + 17
        parts.append(f'<rect x="{x:.0f}" y="{y}" width="11" height="11" fill="{_COLOURS[i % len(_COLOURS)]}"/>')
        parts.append(f'<text x="{x + 16:.0f}" y="{y + 10}">{escape(name)}</text>')
        x += wide
    return parts, y + 24


def _plot(rows: list[Row]) -> str:
    """A bar for each implementation of each case, as long as its rate."""
    left, width, bar = 330, 620, 13
    who = list(dict.fromkeys(name for row in rows for name in row.times))
    rows, unit = rows[:_MOST_PLOTTED], rows[0].unit
    most = max((row.rate(name) for row in rows for name in who), default=0.0)
    if most <= 0:
        return ""
    parts, y = _legend(who, left, 1040)
    parts.append(f'<text x="{left - 8}" y="12" text-anchor="end">{escape(unit)}</text>')
    for row in rows:
        shown = [(i, row.rate(name)) for i, name in enumerate(who) if row.rate(name) > 0]
        middle = y + max(len(shown), 1) * bar / 2 + 4
        parts.append(f'<text x="{left - 8}" y="{middle:.0f}" text-anchor="end">{escape(row.name)}</text>')
        for i, rate in shown:
            parts.append(
                f'<rect x="{left}" y="{y}" width="{max(width * rate / most, 1):.1f}" height="{bar - 2}" '
                f'fill="{_COLOURS[i % len(_COLOURS)]}"/><text x="{left + width * rate / most + 5:.0f}" '
                f'y="{y + 10}">{rate:.3g}</text>'
            )
            y += bar
        y += 9 + (0 if shown else bar)
    return (
        f'<svg viewBox="0 0 1040 {y + 4}" width="100%" role="img" aria-label="{escape(unit)} by case">'
        f"{''.join(parts)}</svg>"
    )
