"""What the paper says, place by place: its figures and tables differ, so no value belongs to a method alone."""

from __future__ import annotations

Values = dict[tuple[str, str, int], float]  # (row, column, d) -> mAP, or points where the place speaks of points


def _rows(column: str, dims: tuple[int, ...], rows: dict[str, tuple[float | None, ...]]) -> Values:
    """One column: for each row its values by dimension."""
    return {
        (row, column, d): value
        for row, values in rows.items()
        for d, value in zip(dims, values, strict=True)
        if value is not None
    }


def _table(columns: tuple[str, ...], rows: dict[tuple[str, int], tuple[float | None, ...]]) -> Values:
    """A table: for each row and dimension its values by column."""
    return {
        (row, column, d): value
        for (row, d), values in rows.items()
        for column, value in zip(columns, values, strict=True)
        if value is not None
    }


PARIS, OXFORD, HOLIDAYS = "Paris", "Oxford", "Holidays"
SEARCH_COLUMNS = (PARIS, "Paris +Oxf100k", OXFORD, "Oxford +Oxf100k", HOLIDAYS)

PUBLISHED: dict[str, Values] = {
    "fig. layers": _rows(
        PARIS,
        (512, 256, 128),
        {
            "pool5": (0.767, 0.759, 0.729),
            "conv5": (0.748, 0.744, 0.702),
            "conv4": (0.740, 0.699, 0.58),
            "pool4": (0.741, 0.695, 0.58),
            "pool5 (586x586)": (0.737, 0.734, 0.708),
            "conv5 (586x586)": (0.723, 0.721, 0.694),
        },
    ),
    "fig. paris_dim": _rows(
        PARIS,
        (512, 256, 128),
        {
            "uCroW": (0.767, 0.759, 0.729),
            "uCroW+SW": (0.780, 0.772, 0.744),
            "CroW": (0.796, 0.779, 0.746),
            "uCroW+SSW": (0.787, 0.775, 0.734),
            "CroW + QE": (0.855, 0.850, 0.827),  # in the figure's data, but not drawn
        },
    ),
    "tab. whiten": _table(
        ("Oxford", "Holidays", "Oxford100k"),
        {
            ("uCroW", 512): (0.786, 0.752, 0.803),
            ("CroW", 512): (0.797, 0.792, 0.810),
            ("uCroW", 256): (0.739, 0.728, 0.732),
            ("CroW", 256): (0.765, 0.784, 0.762),
        },
    ),
    "tab. search": _table(
        SEARCH_COLUMNS,
        {
            ("R-MAC", 512): (0.830, 0.757, 0.669, 0.616, None),
            ("uCroW", 512): (0.786, 0.710, 0.697, 0.641, 0.839),
            ("CroW", 512): (0.797, 0.722, 0.708, 0.653, 0.851),
            ("SPoC", 256): (None, None, 0.531, 0.501, 0.802),
            ("R-MAC", 256): (0.729, 0.601, 0.561, 0.470, None),
            ("uCroW", 256): (0.739, 0.658, 0.667, 0.612, 0.815),
            ("CroW", 256): (0.765, 0.691, 0.684, 0.637, 0.851),
            ("uCroW", 128): (0.699, 0.610, 0.625, 0.559, None),
            ("CroW", 128): (0.746, 0.670, 0.641, 0.590, 0.828),
            ("CroW + QE", 128): (0.793, 0.728, 0.670, 0.641, None),
            ("CroW + QE", 256): (0.815, 0.753, 0.718, 0.676, None),
            ("CroW + QE", 512): (0.848, 0.794, 0.749, 0.706, None),
        },
    ),
    "text on SPoC": _rows(PARIS, (512, 256), {"gain in points": (4.6, 3.9)}),
    "fig. res": {("false results in the top 10", PARIS, 512): 3},
}

POOLING: dict[str, tuple[str, str, str]] = {  # tab. spocsup: step -> SPoC, uCroW, CroW
    "1: local pooling": ("none", "max", "max"),
    "2: spatial weighting": ("centering prior", "uniform", "SW"),
    "3: channel weighting": ("uniform", "uniform", "SSW"),
    "4: aggregation": ("sum", "sum", "sum"),
}

WORDS: dict[str, str] = {  # what the paper says of each, in short
    "layers": "The last layers are far better than the fourth block's, and more so in few dimensions; pool5 is always "
    "better than conv5_3; the original size is better than 586x586.",
    "paris_dim": "CroW is better than uCroW at every dimension; uCroW+SSW suffers most from the reduction.",
    "whiten": "Learning the whitening on pictures like those searched overfits as the dimension falls.",
    "search": "CroW is better than uCroW in all cases, and by more as the dimension falls; query expansion with the "
    "top 10 always helps.",
    "max_pooling": "Max pooling is always worse than sum pooling where vectors are whitened, and better where they are "
    "not; without whitening mAP is much lower, sometimes by more than 10 points.",
    "norms": "With L1, L2, inf or a = 0.5 in the spatial weight mAP differs by less than 0.01.",
    "spoc_layer": "CroW's weights on SPoC's features, instead of the centre prior, gain 3.9 points at d = 256 and 4.6 "
    "at 512 on Paris.",
    "top10": "3 false results in the top 10 of all 55 queries on Paris at d = 512, without query expansion.",
    "spocsup": "SPoC, uCroW and CroW are instances of one framework.",
    "sparsity2": "The spatial weight is larger where more channels fire: it favours places where features co-occur.",
    "sparsity_correlation": "Channel sparsities correlate strongly between pictures of one landmark, less between "
    "pictures of different ones.",
    "patches": "High weights fall on salient content, low ones on sky, ground and other empty places.",
    "idfviz": "The channels with the highest weights fire at a few telling places.",
    "resgood": "Even 32 dimensions withstand changes of viewpoint and light.",
    "res": "Nearly everything in the top 10 is right.",
}
