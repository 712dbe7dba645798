"""An evaluation as one HTML page that needs nothing else: the table, the curves, and what every query found."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from crow.evaluate.datasets import Query
from crow.evaluate.protocols import curve
from crow.evaluate.rank import Answer
from crow.evaluate.run import Evaluation, Result
from crow.extract.images import PictureError, load
from crow.files import replacing

THUMB = 96  # pixels of the longer side
COLOURS = ("#0b6e99", "#c2571a", "#4c7a34", "#7a4b94", "#a3283a", "#8a6d00", "#26706b", "#5b5b5b")
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 76rem; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse } td, th { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #e2e2e2 }
td:first-child, th:first-child { text-align: left } .note { color: #555 } .scroll { overflow-x: auto }
.strip { display: flex; gap: 6px; align-items: center; margin: .35rem 0 }
.strip span { flex: none; width: 11rem; overflow-wrap: anywhere; font-size: .8rem }
.strip i { flex: none; width: 76px; height: 76px; background: #f2f2f2 center / contain no-repeat; border: 4px solid }
.strip .query { border-color: #222; margin-right: 10px }
.strip .right { border-color: #2e8b3d } .strip .wrong { border-color: #e07b00 } .strip .junk { border-color: #b5b5b5 }
summary { cursor: pointer; margin: .6rem 0 }
"""


def write(evaluation: Evaluation, file: Path) -> None:
    """The report as one file, whole or not at all."""
    with replacing(file) as half:
        half.write_text(page(evaluation), "utf-8")


def page(evaluation: Evaluation) -> str:
    """The whole page."""
    dataset, title = evaluation.dataset, f"crow eval {evaluation.dataset.name}"
    used = {n for result in evaluation.results for a in result.answers for n, _ in a.shown}
    pictures = {name: f"p{i}" for i, name in enumerate(sorted(used))}
    asked = {query.name: f"q{i}" for i, query in enumerate(dataset.queries)}
    style = [
        f".strip .{key}{{background-image:url({_thumbnail(dataset.images[name])})}}" for name, key in pictures.items()
    ]
    style += [f".strip .{asked[q.name]}{{background-image:url({_thumbnail(q.path, q)})}}" for q in dataset.queries]
    notes = [*evaluation.skipped, *evaluation.amiss, *(f"{k}: {v}" for k, v in dataset.archives.items())]
    body = [f"<h1>{escape(title)}</h1>{_choices(evaluation.results)}"]
    body += [_summary(evaluation.results), _curves(evaluation.results)]
    body += [f"<p class=note>{escape(note)}</p>" for note in notes]
    body += [_by_query(evaluation.results), *(_section(result, pictures, asked) for result in evaluation.results)]
    legend = "border: green right, orange wrong, grey passed over (junk); black: the query, its box in red"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        f"<meta name=viewport content='width=device-width'><style>{STYLE}{''.join(style)}</style>"
        f"{''.join(body[:3])}<p class=note>{legend}</p>{''.join(body[3:])}</html>"
    )


def _choices(results: Sequence[Result]) -> str:
    """Every choice that is the same for all results."""
    names = ["network", "layer", "size", "crop", "upright", "pca", "expand", "expand_with_query", "distractors"]
    names += ["engine", "precision", "weights"]
    records = [result.record for result in results]
    same = [n for n in names if len({str(r.get(n)) for r in records}) == 1 and n in records[0]]
    shown = [f"{n.replace('_', ' ')} {_word(records[0][n])}" for n in same]
    return f"<p class=note>{escape(', '.join(shown))}</p>" if records else ""


def _word(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _by_query(results: Sequence[Result]) -> str:
    """AP of every query under every result."""
    aps = [{answer.query: answer.ap for answer in result.answers} for result in results]
    queries = list(dict.fromkeys(query for column in aps for query in column))
    head = "".join(f"<th>{escape(label(result))}" for result in results)
    rows = [f"<tr><td>{escape(q)}" + "".join(f"<td>{_percent(c.get(q))}" for c in aps) + "</tr>" for q in queries]
    table = f"<div class=scroll><table><tr><th>query{head}</tr>{''.join(rows)}</table></div>"
    return f"<details><summary>AP of every query</summary>{table}</details>"


def label(result: Result) -> str:
    """A result's own name on the page."""
    record = result.record
    parts = [record["recipe"], f"d = {record['dim']}" if record["dim"] else "", record["setting"] or ""]
    return ", ".join(part for part in parts if part)


def _summary(results: Sequence[Result]) -> str:
    head = "<tr><th>recipe<th>setting<th>d<th>whitening<th>queries<th>images<th>mAP<th>95 %<th>P@1<th>P@10<th>p</tr>"
    rows = []
    for r in (result.record for result in results):
        low, high = r["ci_low"], r["ci_high"]
        cells = [r["recipe"], r["setting"] or "", r["dim"] or "", r["whiten"] or "", r["queries"], r["images"]]
        cells += [_percent(r["map"]), f"{_percent(low)} – {_percent(high)}"]
        cells += [_percent(r["precision_at_1"]), _percent(r["precision_at_10"])]
        cells += [f"{chance(r['p'])} against {r['against']}" if "p" in r else ""]
        rows.append("<tr>" + "".join(f"<td>{escape(str(cell))}" for cell in cells) + "</tr>")
    return f"<div class=scroll><table>{head}{''.join(rows)}</table></div>"


def chance(p: float) -> str:
    """A p-value as it is printed."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _curves(results: Sequence[Result]) -> str:
    """Mean precision at 101 steps of recall, a line per result, as inline SVG."""
    lines, names = [], []
    for i, result in enumerate(results):
        colour, dash = COLOURS[i % len(COLOURS)], "" if i < len(COLOURS) else " stroke-dasharray='5 3'"
        precision = mean_curve(result.answers)
        points = " ".join(f"{60 + 4 * x},{330 - 300 * y:.1f}" for x, y in enumerate(precision))
        lines.append(f"<polyline fill=none stroke='{colour}' stroke-width=2{dash} points='{points}'/>")
        names.append(f"<text x=480 y={40 + 17 * i} fill='{colour}'>{escape(label(result))}</text>")
    height = max(380, 60 + 17 * len(results))
    grid = [
        f"<path stroke='#ddd' d='M60 {y} H460'/><text x=52 y={y + 4} text-anchor=end>{(330 - y) / 300:.1f}</text>"
        for y in range(30, 331, 60)
    ]
    grid += [f"<text x={60 + 80 * i} y=350 text-anchor=middle>{i / 5:.1f}</text>" for i in range(6)]
    axes = "<text x=260 y=372 text-anchor=middle>recall</text><text x=60 y=18 text-anchor=middle>precision</text>"
    return f"<svg viewBox='0 0 760 {height}' width=760 font-size=13 role=img aria-label='precision by recall'>{''.join(grid)}{axes}{''.join(lines + names)}</svg>"


def mean_curve(answers: Sequence[Answer]) -> list[float]:
    """Precision at recall 0, 0.01 ... 1, the mean over queries; 0 beyond what a query ever found."""
    steps = np.linspace(0, 1, 101)
    rows = []
    for answer in answers:
        if answer.total:
            recall, precision = curve(answer.ranks, answer.total)
            best = np.maximum.accumulate(precision[::-1])[::-1]  # what can be had at this recall or beyond
            places = np.searchsorted(recall, steps - 1e-9)
            rows.append(np.where(places < len(best), best[np.minimum(places, len(best) - 1)], 0.0))
    return np.mean(rows, axis=0).tolist() if rows else []


def _section(result: Result, pictures: dict[str, str], asked: dict[str, str]) -> str:
    """Every query of one result, the worst first, with its first results."""
    counted = [answer for answer in result.answers if answer.ap is not None]
    rows = []
    for answer in sorted(counted, key=lambda a: (a.ap, a.query)):
        marks = "".join(
            f"<i class='{pictures[name]} {verdict}' title='{escape(name, quote=True)}'></i>"
            for name, verdict in answer.shown
        )
        text = f"{escape(answer.query)}<br>AP {_percent(answer.ap)}, {len(answer.ranks)} of {answer.total} found"
        rows.append(f"<div class=strip><span>{text}</span><i class='query {asked[answer.query]}'></i>{marks}</div>")
    about = f"{escape(label(result))}: mAP {_percent(result.record['map'])}"
    return f"<details><summary>{about}</summary><div class=scroll>{''.join(rows)}</div></details>"


def _thumbnail(path: Path, query: Query | None = None) -> str:
    """A small JPEG as a data address, a query's box drawn in red; grey where the picture does not decode."""
    from PIL import Image, ImageDraw

    try:
        image = Image.fromarray(load(path).pixels)
    except PictureError:
        image = Image.new("RGB", (THUMB, THUMB), "#ddd")
    scale = THUMB / max(image.size)
    image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    if query and query.box:
        ImageDraw.Draw(image).rectangle([side * scale for side in query.box], outline="red", width=2)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=75)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
