"""What these tests share: a Milvus server and a Ray cluster of three nodes, each started once; skipped by name where they are absent."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SEARCH = HERE.parent / "search"
for folder in (HERE, SEARCH):
    sys.path.insert(0, str(folder))
# Workers of the cluster are processes of their own: they find the tests' describer by this.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(SEARCH), os.environ.get("PYTHONPATH", "")])

from apart import leave_the_network  # noqa: E402
from servers import Milvus, Weed  # noqa: E402

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # as crow has it too, but here others import gRPC first
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's name for "127.0.0.1 is the address of this machine"
if reason := leave_the_network():
    warnings.warn(
        f"no network of their own for the servers ({reason}): Milvus listens on every interface", stacklevel=1
    )


@pytest.fixture(scope="session")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Milvus]:
    """A Milvus server on loopback."""
    pytest.importorskip("milvus", reason="no Milvus server: pip install 'crow-search[scale-test]'")
    server = Milvus(tmp_path_factory.mktemp("milvus"))
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture
def address(milvus: Milvus, request: pytest.FixtureRequest) -> Iterator[str]:
    """A place for one test's collections, which are dropped after it."""
    from pymilvus import MilvusClient

    name = "t_" + "".join(c if c.isalnum() else "_" for c in request.node.name)[:80]
    yield f"{milvus.address}/{name}"
    client = MilvusClient(f"http://127.0.0.1:{milvus.port}")
    collections = [c for c in client.list_collections() if c.startswith(name)]
    for collection in collections:
        for alias in client.list_aliases(collection)["aliases"]:
            client.drop_alias(alias)
        client.drop_collection(collection)


@pytest.fixture(scope="session")
def cluster() -> Iterator[object]:
    """A Ray cluster of three nodes of one core each, as separate raylets on loopback."""
    pytest.importorskip("ray", reason="no Ray: pip install 'crow-search[scale]'")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20})
    try:
        for _ in range(2):
            made.add_node(num_cpus=1, object_store_memory=100 << 20)
        yield made
    finally:
        made.shutdown()


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    """An S3 server on loopback."""
    server = Weed(tmp_path_factory.mktemp("weed"))
    try:
        yield server.start()
    finally:
        server.kill()
