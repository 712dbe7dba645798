"""A Ray cluster, joined for as long as a job runs; what cannot be reached is named in seconds."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from crow.search.work import SyncError

CONNECTING = 10.0  # seconds to reach the head of a cluster
CORES = 4  # of a node to one describer without a GPU; a node with fewer gives all it has
HEADROOM = 0.25  # of a core that a describer leaves to listing and counting: without it a node of one core would hang


class ClusterError(SyncError):
    """A cluster that cannot be reached, or a job that it did not finish, with the reason."""


@contextmanager
def joined(address: str) -> Iterator[Any]:
    """The module `ray`, connected: `local` starts a cluster of this machine, `auto` and HOST:PORT join one."""
    try:
        import ray
    except ImportError:
        raise ClusterError("a cluster needs the extra 'scale': pip install 'crow-search[scale]'") from None
    if ray.is_initialized():  # whoever connected it keeps it
        yield ray
        return
    _reachable(address)
    _join(ray, address, again=address == "local")
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    try:
        yield ray
    finally:
        ray.shutdown()


def _join(ray: Any, address: str, again: bool) -> None:
    """Connect; a cluster of this machine is started twice if need be, since Ray gives a busy one half a minute only."""
    dashboard = False if address == "local" else None
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=dashboard)
    except Exception as error:  # Ray raises all kinds, Exception itself among them
        ray.shutdown()
        if again:
            return _join(ray, address, again=False)
        reason = " ".join(str(error).split())[:200]
        raise ClusterError(f"{address}: no Ray cluster can be joined there ({reason})") from None


def _reachable(address: str) -> None:
    """Refuse an address where nobody answers; Ray itself would go on trying for minutes."""
    if address in ("local", "auto"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), CONNECTING):
            pass
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ClusterError(
            f"{address}: no Ray cluster can be reached there ({reason}); local, auto, or HOST:PORT"
        ) from None


def share(ray: Any) -> tuple[dict[str, float], int, int]:
    """What one describer takes of a node, how many describers the cluster has room for, and the cores that each may use."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    with_gpu = [node for node in nodes if node.get("GPU", 0) >= 1]
    if with_gpu:
        cores = min(node.get("CPU", 1) / node["GPU"] for node in with_gpu)
        count = sum(int(node["GPU"]) for node in with_gpu)
        return {"num_gpus": 1, "num_cpus": min(cores, 1) - HEADROOM}, count, max(1, int(cores))
    cores = min((node["CPU"] for node in nodes if node.get("CPU")), default=1.0)
    each = min(cores, CORES)
    return {"num_cpus": each - HEADROOM}, max(1, sum(int(node.get("CPU", 0) // each) for node in nodes)), int(each)
