"""The report on a drawn grouped folder, its numbers beside the paper's source, and its counts told another way."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crow.evaluate.datasets import load
from crow.evaluate.features import Item, Machine, tables
from crow.evaluate.paper import tables as paper_tables
from crow.evaluate.paper.bench import dims_for, of_benchmarks, of_groups
from crow.evaluate.paper.published import POOLING, PUBLISHED, SEARCH_COLUMNS
from crow.evaluate.paper.report import EXHIBITS, UnknownExhibit, make, named
from crow.evaluate.run import Settings, evaluate
from crow.evaluate.tally import Tally, correlations, mean_weights, sparsities, tally
from crow.evaluate.teach import Teacher
from crow.recipe import RECIPES, Size

TEX = Path(__file__).parents[3] / "shared" / "paper" / "crow.tex"


@pytest.fixture
def tex() -> str:
    if not TEX.is_file():
        pytest.skip(f"the paper's source is not at {TEX}")
    return TEX.read_text()


# what is published, read from the source once more


def data_of(tex: str, label: str) -> dict[str, dict[int, float]]:
    """The numbers of the plot whose figure carries this label: column -> d -> value."""
    before = tex[: tex.index(f"\\label{{{label}}}")]
    lines = before[before.rindex("\\pgfplotstableread{") :].split("}{\\map}")[0].splitlines()[1:]
    rows = [line.split() for line in lines if line.strip()]
    return {
        name: {int(row[0]): float(row[i]) for row in rows[1:] if row[i] != "nan"} for i, name in enumerate(rows[0]) if i
    }


def cells_of(tex: str, label: str) -> list[list[str]]:
    """The rows of the table that carries this label, as plain cells."""
    before = tex[: tex.index(f"\\label{{{label}}}")]
    body = before[before.rindex("\\begin{tabularx}") :].split("\\end{tabularx}")[0]
    for written, meant in ((r"\midrule", ""), (r"\uCrow", "uCroW"), (r"\CroW", "CroW"), (r"\Crow", "CroW")):
        body = body.replace(written, meant)
    body = re.sub(r"\\cite\{[^}]*\}|\\sCrow|~", lambda m: "SW" if m[0] == r"\sCrow" else "", body)
    body = body.replace(r"\cCrow", "SSW").replace(r"\etal", "")
    body = re.sub(r"\\(?:textbf|multirow\{\d\}\{\*\})\{([^}]*)\}", r"\1", body)
    return [[cell.strip() for cell in row.split("&")] for row in body.split(r"\\") if "&" in row]


def number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"0\.\d+", text) else None


def test_published_figures_are_those_of_the_source(tex):
    layers = data_of(tex, "fig:layers")
    layers["conv4"] = {**layers["c4"], **layers["conv4"]}
    layers["pool4"] = {**layers["p4"], **layers["pool4"]}
    names = {"fspool5": "pool5 (586x586)", "fsconv5": "conv5 (586x586)"}
    want = {
        (names.get(k, k), "Paris", d): v for k, by_d in layers.items() if k not in ("c4", "p4") for d, v in by_d.items()
    }
    assert PUBLISHED["fig. layers"] == want
    dims = data_of(tex, "fig:paris_dim")
    names = {"o": "uCroW", "oscm": "uCroW+SW", "oscmidf": "CroW", "oidf": "uCroW+SSW", "oscmidfqe": "CroW + QE"}
    assert PUBLISHED["fig. paris_dim"] == {(names[k], "Paris", d): v for k, by in dims.items() for d, v in by.items()}


def test_published_tables_are_those_of_the_source(tex):
    d, want = 0, {}
    for cells in cells_of(tex, "tab:whiten"):
        d = int(cells[0]) if cells[0].isdecimal() else d
        want |= {
            (cells[1], name, d): v
            for name, c in zip(("Oxford", "Holidays", "Oxford100k"), cells[2:], strict=False)
            if (v := number(c))
        }
    assert PUBLISHED["tab. whiten"] == want and len(want) == 12
    want = {}
    for cells in cells_of(tex, "tab:search"):
        row = cells[0].split("\n")[-1].strip()
        if row in ("uCroW", "CroW", "CroW + QE", "SPoC", "R-MAC"):
            values = zip(SEARCH_COLUMNS, cells[2:], strict=True)
            want |= {(row, name, int(cells[1])): v for name, c in values if (v := number(c)) is not None}
    assert PUBLISHED["tab. search"] == want and len(want) == 52
    rows = cells_of(tex, "tab:spocsup")
    assert {row[0].split("\n")[-1].strip(): tuple(row[1:]) for row in rows if row[0].strip()[-1:] != "p"} == POOLING


def test_published_words_are_those_of_the_source(tex):
    plain = re.sub(r"[\\$]", "", " ".join(tex.split()))
    gain = re.search(r"around ([\d.]+)% and ([\d.]+)% for (\d+) and (\d+) dimensions", plain)
    assert gain is not None
    want = {("gain in points", "Paris", int(gain[i + 2])): float(gain[i]) for i in (1, 2)}
    assert PUBLISHED["text on SPoC"] == want
    assert re.search(r"only have (\d+) false results in total", plain)[1] == "3"
    assert list(PUBLISHED["fig. res"].values()) == [3]
    assert "usually less than 0.01 in mAP" in plain


def test_pooling_table_of_our_recipes_is_the_papers():
    finding = paper_tables.spocsup(None)
    assert len(finding.lines) == 12 and all(line.ours == line.published for line in finding.lines)


# counts


def test_tally_is_that_of_loops():
    rng = np.random.default_rng(0)
    x = np.maximum(rng.normal(-0.3, 1, (1, 5, 6, 8)), 0).astype(np.float32)
    counts = tally(torch.from_numpy(x), RECIPES["crow"])
    pooled = x[0].reshape(5, 3, 2, 4, 2).max((2, 4))
    weights = np.sqrt(pooled.sum(0) / np.linalg.norm(pooled.sum(0)))
    weights /= weights.max()
    assert sparsities(counts)[0] == pytest.approx([(channel == 0).mean() for channel in pooled], abs=1e-6)
    by_level: dict[int, list[float]] = {}
    for i in range(3):
        for j in range(4):
            by_level.setdefault(sum(pooled[k, i, j] > 0 for k in range(5)), []).append(weights[i, j])
    sparsity, mean, places = mean_weights(np.concatenate([counts, counts]))
    assert dict(zip(sparsity.round(6), places, strict=True)) == {
        round(1 - n / 5, 6): 2 * len(v) for n, v in by_level.items()
    }
    assert mean == pytest.approx([np.mean(by_level[n]) for n in sorted(by_level)], abs=1e-6)


def test_correlation_is_that_of_the_textbook():
    counts = np.random.default_rng(1).random((3, 3 * 7 + 2)).astype(np.float32)
    a, b = (row[:7].astype(float) - row[:7].mean(dtype=float) for row in counts[:2])
    found = correlations(counts)
    assert found[0, 1] == pytest.approx((a @ b) / np.sqrt((a @ a) * (b @ b))) and found[2, 2] == pytest.approx(1)


def test_several_layers_from_one_pass_are_those_of_a_pass_each(lay, own_cache):
    from crow import Describer

    items = [Item(path) for path in load("groups", lay("groups")).images.values()][:4]
    for sides in ((101, 77), (96, 64)):  # odd and even at every pool
        Image.open(items[0].path).resize(sides).save(items[0].path)
        recipes = [RECIPES["ucrow"].at(layer).sized("original") for layer in ("conv4_3", "pool4", "conv5_3", "pool5")]
        counted = Tally(RECIPES["crow"].sized("original"))
        *found, counts = tables(items, [*recipes, counted], Machine(engine="torch"))
        for recipe, table in zip(recipes, found, strict=True):
            np.testing.assert_allclose(
                table.stack(items), Describer(recipe, "torch")([item.path for item in items]), atol=1e-5
            )
        describer = Describer(counted.recipe, "torch")
        alone = tally(describer.maps(items[0].path)[0], counted.recipe)
        np.testing.assert_allclose(counts.stack(items[:1]), alone, atol=1e-4)


# the report


@pytest.fixture
def groups(lay, draw_picture) -> Path:
    root = lay("groups")
    for view in range(2, 14):
        draw_picture(root / "_distractors" / f"{view}.jpg", 70 + view, 0)
    return root


def small(data: Path):
    bench = of_groups(data)
    bench.size, bench.square = Size("largest", 96), Size("square", 64)
    return bench


def test_the_whole_report_on_groups(groups, own_cache, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    report = make(small(groups), tmp_path / "out")
    assert list(report.made) == list(EXHIBITS) and not report.skipped and not report.amiss
    page = (tmp_path / "out" / "index.html").read_text()
    for name, finding in report.made.items():
        assert f"id={name}" in page and finding.place
        for file, png in finding.pictures.items():
            assert Image.open(io.BytesIO(png)).format == "PNG" and f"src='{file}'" in page
            assert (tmp_path / "out" / file).read_bytes() == png
        if finding.lines:
            rows = list(csv.DictReader((tmp_path / "out" / f"{name}.csv").open()))
            assert len(rows) == len(finding.lines)
    numbers = [line for f in report.made.values() for line in f.lines if isinstance(line.published, float)]
    assert not numbers  # a published number belongs to the paper's own sets
    assert "span at most 7 dimensions" in page and {line.d for line in report.made["search"].lines} == {4, 2}
    monkeypatch.setattr("crow.evaluate.once.describe_once", None)  # the second time, nothing goes through the network
    again = make(small(groups), tmp_path / "again", ["search", "norms", "sparsity2"])
    assert [again.made[n].lines for n in again.made] == [report.made[n].lines for n in again.made]


def test_too_few_distractors_leave_vectors_unreduced(lay, own_cache, tmp_path):
    pytest.importorskip("matplotlib")
    report = make(small(lay("groups")), tmp_path / "out")
    assert set(report.skipped) == {"whiten", "resgood"}
    assert {line.d for line in report.made["search"].lines} == {512}
    assert "too few pictures to learn a reduction on" in (tmp_path / "out" / "index.html").read_text()


def test_a_row_of_the_search_table_is_an_evaluation_of_its_own(groups, own_cache, tmp_path):
    bench = small(groups)
    bench.more = tuple(RECIPES[name].sized(bench.size) for name in ("gem", "rmac-regional"))
    lines = make(bench, tmp_path / "out", ["search"]).made["search"].lines
    dataset = load("groups", groups)
    loose = [name for name in dataset.images if name.startswith(("_", "thing62"))]
    dataset = replace(dataset, images={n: p for n, p in dataset.images.items() if n not in loose[::2]})
    teacher = Teacher("by hand", tuple(groups / name for name in loose[::2]))
    asked = tuple(RECIPES[name].sized(bench.size) for name in ("rmac", "gem", "rmac-regional"))
    for result in evaluate(dataset, Settings(asked, (4, 2)), teacher).results:
        row = {"rmac": "R-MAC", "gem": "GeM"}.get(result.record["recipe"], result.record["recipe"])
        mine = [x for x in lines if (x.row, x.column, x.d) == (row, "groups +distractors", result.record["dim"])]
        assert [x.ours for x in mine] == pytest.approx([result.record["map"]], abs=1e-9)


def test_what_is_missing_is_skipped_by_name(lay, own_cache, tmp_path):
    lay("paris6k")
    lay("oxford5k")
    bench = of_benchmarks(tmp_path)
    bench.size, bench.square, bench.dims = Size("largest", 96), Size("square", 64), (8, 4)
    assert list(bench.columns) == ["Paris", "Oxford"]
    report = make(bench, tmp_path / "out", ["search", "whiten", "top10", "patches"])
    assert "none of paris_notredame_000035" in report.skipped["patches"]
    notes = " ".join(report.made["search"].notes)
    assert "Skipped: Holidays: holidays: none of its pictures" in notes and "Skipped: Paris +Oxf100k" in notes
    assert {line.column for line in report.made["whiten"].lines} == {"Oxford"}
    empty = of_benchmarks(tmp_path / "out")
    report = make(empty, tmp_path / "empty", ["search", "layers", "spocsup"])
    assert list(report.made) == ["spocsup"] and "paris6k" in report.skipped["layers"]
    assert "Skipped: layers" in (tmp_path / "empty" / "index.html").read_text()


def test_dims():
    assert dims_for(5063) == (512, 256, 128) and dims_for(513) == (512, 256, 128)
    assert dims_for(512) == (256, 128, 64) and dims_for(52) == (32, 16, 8) and dims_for(3) == (2,)
    assert dims_for(2) == () and dims_for(0) == ()


def test_false_results_are_counted_among_the_places_that_could_be_right():
    shown = (("a", "right"), ("b", "wrong"), ("c", "junk"), ("d", "wrong"))
    assert paper_tables.count_false(shown, 20) == 2 and paper_tables.count_false(shown, 2) == 1


def test_names():
    assert named(["res", "layers"]) == ["layers", "res"] and len(named([])) == 15
    with pytest.raises(UnknownExhibit, match=r"no table or figure named 'x'; there are: patches, sparsity2, .*res"):
        named(["x"])
