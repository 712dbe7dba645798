from __future__ import annotations

import re

import numpy as np
import pytest

from crow.evaluate.datasets import load
from crow.evaluate.rank import Answer
from crow.evaluate.report import mean_curve, page, write
from crow.evaluate.run import Evaluation, summed_up


def answer(ranks, total):
    return Answer("q", "", 0.5, np.array(ranks), total, ())


def test_mean_curve_is_the_best_precision_at_each_recall():
    """One right one of two at rank 1, the other never: precision 1 to recall 0.5, then nothing."""
    precision = mean_curve([answer([0], 2)])
    assert precision[:51] == [1.0] * 51 and precision[51:] == [0.0] * 50
    both = mean_curve([answer([0], 2), answer([1], 1)])
    assert [both[0], both[50], both[100]] == pytest.approx([1, (1 + 0.5) / 2, (0 + 0.5) / 2])


def test_the_page_marks_what_is_right_and_needs_nothing_else(lay, tmp_path):
    dataset = load("oxford5k", lay("oxford5k"))
    names = list(dataset.images)
    orders = [np.arange(len(names)) for _ in dataset.queries]
    record = {"recipe": "<mine>", "dim": None, "whiten": None, "size": "original"}
    results = summed_up(dataset, names, dataset.queries, orders, record)
    file = tmp_path / "page.html"
    write(Evaluation(dataset, tuple(results), {"x.jpg": "<broken>"}), file)
    html = file.read_text()
    assert html == page(Evaluation(dataset, tuple(results), {"x.jpg": "<broken>"}))
    strips = re.findall(r"<div class=strip>.*?</div>", html)
    assert len(strips) == 4
    first = next(s for s in strips if "all_souls_1<br>" in s)
    assert re.findall(r"(right|wrong|junk)' title", first)[:5] == ["right", "right", "right", "junk", "wrong"]
    assert "&lt;mine&gt;" in html and "x.jpg: &lt;broken&gt;" in html and "<mine>" not in html
    assert not re.search(r"(src|href)=", html) and "url(http" not in html
    assert [p.name for p in tmp_path.glob("*.html")] == ["page.html"]
