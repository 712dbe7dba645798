"""What one describer takes of a cluster's nodes, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from crow.search.cluster import share


@pytest.mark.parametrize(
    ("nodes", "takes", "count", "cores"),
    [
        ([{"CPU": 1.0}] * 3, {"num_cpus": 0.75}, 3, 1),  # a core each, and room to list beside it
        ([{"CPU": 16.0}, {"CPU": 8.0}], {"num_cpus": 3.75}, 6, 4),
        ([{"CPU": 2.0}, {"CPU": 16.0}], {"num_cpus": 1.75}, 9, 2),
        ([{"CPU": 32.0, "GPU": 4.0}, {"CPU": 4.0}], {"num_gpus": 1, "num_cpus": 0.75}, 4, 8),
    ],
)
def test_the_share_of_a_describer(
    nodes: list[dict[str, float]], takes: dict[str, float], count: int, cores: int
) -> None:
    cluster = SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": node} for node in nodes])
    assert share(cluster) == (takes, count, cores)
