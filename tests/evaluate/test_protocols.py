from __future__ import annotations

import itertools

import numpy as np
import pytest

from crow.evaluate.protocols import (
    ProtocolError,
    average_precision,
    compare,
    curve,
    full_sort,
    interval,
    judge,
    mean,
    precision_at,
    precision_within,
    ranks_of,
    recall_at,
)


def compute_ap(positives: set[int], junk: set[int], ranked: list[int]) -> np.float32:
    """The authors' C++ program written again: sets, one pass, every number a 32-bit float."""
    old_recall, old_precision, ap = np.float32(0), np.float32(1), np.float32(0)
    hits, seen = 0, 0
    for name in ranked:
        if name in junk:
            continue
        hits += name in positives
        recall = np.float32(hits) / np.float32(len(positives))
        precision = np.float32(hits / (seen + 1.0))
        ap = np.float32(ap + (recall - old_recall) * ((old_precision + precision) / np.float32(2)))
        old_recall, old_precision = recall, precision
        seen += 1
    return ap


def test_ap_is_the_authors_compute_ap_on_1000_random_rankings():
    random, worst = np.random.default_rng(1), 0.0
    for _ in range(1000):
        n = int(random.integers(1, 300))
        order = random.permutation(n)
        labels = random.choice(3, size=n + 20, p=[0.8, 0.12, 0.08])
        labels[int(random.integers(n + 20))] = 1
        positives, junk = set(np.flatnonzero(labels == 1).tolist()), set(np.flatnonzero(labels == 2).tolist())
        ours = average_precision(ranks_of(order, positives, junk), len(positives))
        worst = max(worst, abs(ours - float(compute_ap(positives, junk, order.tolist()))))
    print(f"largest difference over 1,000 rankings: {worst:.2e}")
    assert worst <= 1e-6


def test_ap_worked_out_on_paper():
    ranks = np.array([0, 3])  # right, wrong, wrong, right; three right in all, one has no picture
    # first: (1 + 1) / 2, second: (1/3 + 2/4) / 2, third never found
    assert average_precision(ranks, 3) == pytest.approx((1 + (1 / 3 + 1 / 2) / 2) / 3)
    assert average_precision(np.array([], int), 3) == 0
    assert average_precision(np.array([1]), 1) == pytest.approx((0 + 1 / 2) / 2)


def test_area_under_the_curve_is_the_ap_without_its_steps():
    """Between two right ones precision falls, then rises at equal recall: AP is the area plus half of each rise."""
    ranks, total = np.array([0, 1, 4, 9]), 5
    recall, precision = curve(ranks, total)
    assert recall.tolist() == [0, 0.2, 0.4, 0.6, 0.8]
    before = [1.0, 1.0, 2 / 4, 3 / 9]
    assert precision.tolist() == pytest.approx([1, 1, 1, 3 / 5, 4 / 10])
    assert average_precision(ranks, total) == pytest.approx(np.mean([before, precision[1:]], axis=0).sum() / total)


def test_junk_is_dropped_before_ranks_are_counted():
    order = np.array([5, 0, 6, 1, 2, 7])
    assert ranks_of(order, {0, 1, 7}, {5, 2}).tolist() == [0, 2, 3]
    assert ranks_of(order, [], [5]).tolist() == []


def test_ties_are_broken_by_index():
    scores = np.array([[0.5, 0.9, 0.5, 0.9 + 1e-13, 0.1]])
    assert full_sort(scores).tolist() == [[1, 3, 0, 2, 4]]


def test_revisited_settings_on_paper():
    """Ranking: H0 J E0 W H1 E1, with one more easy picture that is nowhere."""
    labels = {"easy": ["E0", "E1", "E2"], "hard": ["H0", "H1"], "junk": ["J"]}
    names = ["H0", "J", "E0", "W", "H1", "E1"]
    ranks = {}
    for setting, judged in judge("revisited", labels).items():
        right = [i for i, name in enumerate(names) if name in judged.right]
        junk = [i for i, name in enumerate(names) if name in judged.junk]
        ranks[setting] = ranks_of(np.arange(6), right, junk)
    # easy: E0 W E1 -> ranks 0, 2; medium: H0 E0 W H1 E1 -> 0 1 3 4; hard: H0 W H1 -> 0, 2
    assert {k: v.tolist() for k, v in ranks.items()} == {"easy": [0, 2], "medium": [0, 1, 3, 4], "hard": [0, 2]}
    assert average_precision(ranks["easy"], 3) == pytest.approx((1 + (1 / 2 + 2 / 3) / 2) / 3)
    assert average_precision(ranks["medium"], 5) == pytest.approx(
        (1 + 1 + (2 / 3 + 3 / 4) / 2 + (3 / 4 + 4 / 5) / 2) / 5
    )
    assert average_precision(ranks["hard"], 2) == pytest.approx((1 + (1 / 2 + 2 / 3) / 2) / 2)
    # the last right one stands third: P@5 and P@10 divide by 3
    assert [precision_within(ranks["easy"], k) for k in (1, 5, 10)] == pytest.approx([1, 2 / 3, 2 / 3])
    assert [precision_within(ranks["medium"], k) for k in (1, 5, 10)] == pytest.approx([1, 4 / 5, 4 / 5])
    assert [precision_at(ranks["easy"], k) for k in (1, 5)] == pytest.approx([1, 2 / 5])
    assert [recall_at(ranks["easy"], 3, k) for k in (1, 5)] == pytest.approx([1 / 3, 2 / 3])


def test_an_empty_easy_list_leaves_the_query_out_of_easy_alone():
    judged = judge("revisited", {"easy": [], "hard": ["a"], "junk": []})
    assert not judged["easy"].right and judged["easy"].junk == {"a"}
    assert judged["medium"].right == judged["hard"].right == {"a"}
    assert mean([None, 0.5, 1.0]) == 0.75
    assert mean([None]) is None and interval([None]) is None and compare([None], [0.5]) is None


def test_what_is_right_in_the_other_protocols():
    assert judge("oxford", {"good": ["q", "a"], "ok": ["b"], "junk": ["c"]})[""].right == {"q", "a", "b"}
    groups = judge("groups", {"group": ["q", "a"], "self": ["q"]})[""]
    assert groups.right == {"a"} and groups.junk == {"q"}
    with pytest.raises(ProtocolError, match="no protocol named 'trec'; there are: oxford, holidays"):
        judge("trec", {})


def test_nothing_found_is_no_precision():
    assert precision_within(np.array([], int), 5) == 0


def test_interval_is_close_to_the_normal_one_and_the_same_every_time():
    values = np.random.default_rng(3).normal(0.7, 0.1, 400).tolist()
    low, high = interval(values)
    half = 1.96 * np.std(values) / np.sqrt(400)
    assert low == pytest.approx(np.mean(values) - half, abs=1e-3)
    assert high == pytest.approx(np.mean(values) + half, abs=1e-3)
    assert interval(values) == (low, high)


def test_p_is_that_of_all_sign_flips():
    """Against every one of the 2^10 flips, counted."""
    random = np.random.default_rng(4)
    first, second = random.random(10), random.random(10)
    difference = first - second
    flips = [abs(np.mean(np.array(s) * difference)) for s in itertools.product((-1, 1), repeat=10)]
    exact = np.mean(np.array(flips) >= abs(difference.mean()) - 1e-12)
    found = compare(first.tolist(), second.tolist())
    assert found.p == pytest.approx(exact, abs=0.02)
    assert found.mean == pytest.approx(difference.mean())
    assert found.low < found.mean < found.high and found.queries == 10


def test_equal_recipes_differ_by_chance_alone():
    same = compare([0.5, 0.7, None], [0.5, 0.7, 0.1])
    assert same.p == 1 and same.mean == same.low == same.high == 0 and same.queries == 2


def second_telling(ranked: list[str], right: set[str], junk: set[str], ks: tuple[int, ...]) -> list[float]:
    """AP and P@k of the revisited protocol in one walk down the list, counting by hand what stands above."""
    above, hits, ap, places = 0, 0, 0.0, []
    for name in ranked:
        if name in junk:
            continue
        if name in right:
            before = hits / above if above else 1.0
            hits += 1
            ap += (before + hits / (above + 1)) / 2
            places.append(above + 1)
        above += 1
    cuts = [min(k, max(places, default=k)) for k in ks]
    return [ap / len(right), *(sum(place <= cut for place in places) / cut for cut in cuts)]


def test_revisited_on_random_rankings_is_a_second_telling():
    random, compared, skipped = np.random.default_rng(5), 0, 0
    for _ in range(200):
        names = [f"n{i}" for i in range(int(random.integers(3, 40)))]
        labels = {"easy": [], "hard": [], "junk": [], "none": []}
        for name in names:
            labels[str(random.choice(list(labels), p=[0.1, 0.15, 0.15, 0.6]))].append(name)
        order = random.permutation(len(names))
        for judged in judge("revisited", labels).values():
            if not judged.right:
                skipped += 1
                continue
            right, junk = ([i for i, n in enumerate(names) if n in part] for part in (judged.right, judged.junk))
            ranks = ranks_of(order, right, junk)
            ours = [average_precision(ranks, len(right)), *(precision_within(ranks, k) for k in (1, 5, 10))]
            theirs = second_telling([names[i] for i in order], set(judged.right), set(judged.junk), (1, 5, 10))
            assert ours == pytest.approx(theirs, abs=1e-12)
            compared += 1
    assert compared > 300 and skipped > 20
