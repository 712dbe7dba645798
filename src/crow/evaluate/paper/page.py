"""The report as one HTML page beside its pictures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from crow.evaluate.paper.bench import Bench
from crow.evaluate.paper.finding import COUNTS, SETTINGS, Finding, Line
from crow.evaluate.paper.published import WORDS

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 2rem auto; max-width: 68rem; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.8rem; border-top: 1px solid #ddd; padding-top: 1.2rem }
h2 small { color: #777; font-weight: normal; margin-left: .6rem } img { max-width: 100%; height: auto }
table { border-collapse: collapse; margin: .8rem 0 } th, td { padding: .22rem .7rem; text-align: right; border-bottom: 1px solid #e6e6e6; vertical-align: top }
th { font-weight: 600 } .l { text-align: left } .ci, .pub { color: #777; font-size: .85em; white-space: nowrap }
blockquote { margin: .5rem 0; padding: .1rem .9rem; border-left: 3px solid #0b6e99; color: #444 }
.note { color: #555; margin: .35rem 0 } .scroll { overflow-x: auto } summary { cursor: pointer; color: #555 } nav a { margin-right: .8rem; white-space: nowrap }
"""


def page(bench: Bench, made: Mapping[str, Finding], skipped: Mapping[str, str], amiss: Sequence[str]) -> str:
    """The whole page."""
    title = "The paper's tables and figures" + ("" if bench.paper else f", on {bench.main}")
    links = " ".join(f"<a href='#{name}'>{name}</a>" for name in made)
    head = [f"<h1>{escape(title)}</h1>", f"<nav>{links}</nav>", *(_note(note) for note in bench.notes)]
    columns = [f"Skipped: {k}: {v}" for k, v in bench.missing.items()]
    head += [_note(f"Skipped: {name}: {reason}") for name, reason in skipped.items()] + [_note(c) for c in columns]
    body = [_section(name, finding) for name, finding in made.items()]
    wrong = "".join(f"<p class=note>{escape(line)}</p>" for line in amiss)
    tail = f"<h2>What went wrong</h2>{wrong}" if amiss else ""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        f"<meta name=viewport content='width=device-width'><style>{STYLE}</style>{''.join(head + body)}{tail}</html>\n"
    )


def _note(text: str) -> str:
    return f"<p class=note>{escape(text)}</p>"


def _section(name: str, finding: Finding) -> str:
    """One table or figure."""
    parts = [f"<h2 id={name}>{escape(finding.title)}<small>{escape(finding.place)}</small></h2>"]
    parts.append(f"<blockquote>The paper: {escape(WORDS[name])}</blockquote>")
    parts += [f"<p><img src='{file}' alt='{escape(finding.title)}'></p>" for file in finding.pictures]
    if finding.lines:
        parts.append(_table(finding.lines) if finding.listed else "")
        parts.append(f"<p class=note>All values with their settings: <a href='{name}.csv'>{name}.csv</a></p>")
    parts += [_note(note) for note in finding.notes]
    return "".join(parts) + _settings(finding.lines)


def _table(lines: Sequence[Line]) -> str:
    """A row per (row, d) and a column per column; of one column alone, a row per row and a column per d."""
    if len({line.column for line in lines}) == 1 and any(line.d for line in lines):
        return _grid(("",), [((line.row,), f"d = {line.d}" if line.d else "", line) for line in lines])
    dims = any(line.d for line in lines)
    if not dims:
        return _grid(("",), [((line.row,), line.column, line) for line in lines])
    return _grid(("", "d"), [((line.row, str(line.d or "")), line.column, line) for line in lines])


def _grid(corner: tuple[str, ...], keyed: Sequence[tuple[tuple[str, ...], str, Line]]) -> str:
    """Lines by row and column; in each cell ours, its interval, and the published value."""
    columns = list(dict.fromkeys(column for _, column, _ in keyed))
    cells: dict[tuple[str, ...], dict[str, Line]] = {}
    for row, column, line in keyed:
        cells.setdefault(row, {})[column] = line
    head = "".join(f"<th class=l>{text}" for text in corner) + "".join(f"<th>{escape(c)}" for c in columns)
    rows = [
        "".join(f"<td class=l>{escape(text)}" for text in row)
        + "".join(f"<td>{_cell(by_column.get(column))}" for column in columns)
        for row, by_column in cells.items()
    ]
    return f"<div class=scroll><table><tr>{head}{''.join(f'<tr>{row}' for row in rows)}</table></div>"


def _cell(line: Line | None) -> str:
    """Ours, the interval, the published value and the difference."""
    if line is None:
        return ""
    points = line.row.endswith("in points")
    shown = _number(line.ours, points)
    if line.low is not None and line.high is not None:
        shown += f" <span class=ci>{_number(line.low, points)} – {_number(line.high, points)}</span>"
    if line.published is not None:
        shown += f"<br><span class=pub>published {_number(line.published, points)}{_difference(line, points)}</span>"
    return shown


def _difference(line: Line, points: bool) -> str:
    if line.difference is not None:
        return f", ours {_number(line.difference, points, sign='+')}"
    return "" if line.published == line.ours or not isinstance(line.ours, str) else ", ours differs"


def _number(value: Any, points: bool, sign: str = "") -> str:
    if isinstance(value, float):
        return f"{value:{sign}.{1 if points else 3}f}"
    return f"{value:{sign}}" if isinstance(value, int) else escape(str(value))


def _settings(lines: Sequence[Line]) -> str:
    """What is the same for all values of a section, said once; the CSV says it for each."""
    records = [line.record for line in lines if line.record]
    if not records:
        return ""
    same: dict[str, Any] = {}
    for name in [*SETTINGS, *COUNTS]:
        values = {str(record.get(name)) for record in records}
        same[name] = values.pop() if len(values) == 1 else "as the table says"
    text = "; ".join(f"{name}: {value}" for name, value in same.items() if value not in ("[]", "None"))
    return f"<details><summary>settings</summary><p class=note>{escape(text)}</p></details>"
