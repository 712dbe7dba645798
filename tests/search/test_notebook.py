"""Hits in a notebook, and the example notebook: its cells run in order, as a kernel would run them."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tiny import Tiny

from crow.search.index import Index
from crow.search.notebook import MOST, results_html
from crow.search.query import Hit

EXAMPLE = Path(__file__).parents[2] / "examples" / "03_notebook.ipynb"


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_results_show_their_pictures(tmp_path: Path, photos: Callable[..., Path], tiny: Tiny) -> None:
    with Index.create(tmp_path / "a.crow", describer=tiny) as index:
        index.sync(photos(4))
        results = index.search(photos(4) / "0.png", k=4)
        html = results._repr_html_()
        images = [attrs for tag, attrs in Tags(html).seen if tag == "img"]
        assert [image["alt"] for image in images] == [Path(hit.path).name for hit in results]
        assert all(str(image["src"]).startswith("data:image/jpeg;base64,") for image in images)
        assert f"{results[1].score:.2f}" in html and results[0]._repr_html_() in html


def test_what_a_path_says_is_text_and_a_missing_file_is_told() -> None:
    hit = Hit('/photos/<script>alert(1)</script>\udcff".jpg', 0.5, 0.1, False)
    html = hit._repr_html_()
    assert "<script>" not in html and "no such file" in html
    html.encode("utf-8")
    many = [Hit(f"/nowhere/{i}.jpg", 1 - i / 1000, 0.0, i < 5) for i in range(MOST + 7)]
    assert "and 7 more" in results_html(many) and results_html(many).count("matches end here") == 1
    assert "nothing was found" in results_html([])


def outputs(path: Path) -> Iterator[Any]:
    """What the last expression of each code cell gives, all in one name space."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), str(path), "exec"), names)
        code = compile(ast.Expression(last.value), str(path), "eval") if isinstance(last, ast.Expr) else None
        yield eval(code, names) if code else None  # noqa: S307


def test_the_example_notebook_runs(vgg16: Path) -> None:
    pytest.importorskip("skimage", reason="scikit-image is not installed: it carries the photographs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, added, results, hit, drawn = outputs(EXAMPLE)
    assert added == 24
    assert all("chelsea" in found.path for found in results[:3])
    assert len(re.findall("<img", results._repr_html_())) == 12 and "<img" in hit._repr_html_()
    assert drawn._repr_png_().startswith(b"\x89PNG")


def test_the_example_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(EXAMPLE.read_text("utf-8"))["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")
