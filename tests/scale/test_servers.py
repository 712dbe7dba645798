"""The servers of these tests can be reached by nobody else."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from servers import Milvus, Weed


def test_they_have_loopback_alone(milvus: Milvus, weed: Weed, cluster: Any) -> None:
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        pytest.skip("this system gives no network of their own to tests")
    assert milvus.process and weed.process
    raylets = [process.process.pid for node in cluster.list_all_nodes() for process in node.all_processes["raylet"]]
    assert len(raylets) == 3
    for process in (milvus.process.pid, weed.process.pid, *raylets):
        assert Path(f"/proc/{process}/ns/net").readlink() == Path("/proc/self/ns/net").readlink()
        interfaces = Path(f"/proc/{process}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
