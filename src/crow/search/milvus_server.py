"""A Milvus server: its address, calls that outlast a restart, errors as one line, and collections as crow makes them.

Servers before 2.4 hold one vector field in a collection, so every collection here has one; pictures stand in all of
them in the same columns, under the same key.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from crow.search.store import StoreError, StoreMoved

OLDEST = (2, 3)  # of the server: the first with upsert and count(*)
CONNECTING = 10.0  # seconds to reach a server at all
CALL = 60.0  # seconds for one call
PATIENCE = 300.0  # seconds that a server which was there may be away, as while it is started again
BATCH = 500  # rows in one message
PAGE = 4096  # rows in one answer on average: 8 MB at 512 dimensions, far below the 64 MB of one message
SPAN = 1 << 53  # ids are spread evenly over 0 ... SPAN: as many as the numbers of a browser hold
REFUSED = (
    "Milvus refuses the connection: the token (CROW_MILVUS_TOKEN, or USER:PASSWORD@ in the address) or TLS (?tls=1)"
    " is not what it expects, or it is not ready yet"
)
LEVELS = {"strong": "Strong", "session": "Session", "bounded": "Bounded", "eventually": "Eventually"}
NOT_FOUND = 100  # Milvus' code for a collection that is not there, or not any more
AWAY = {1, 2, 4, 8, 101, 103, 400, 401, 500, 501, 503, 600, 601, 901, 902, 903, 904, 905}  # Milvus' codes for "not now"
LEFT = re.compile(  # and its words, where a message has no code of its own; names of collections stand in [...]
    "unavailable|deadline exceeded|not ready|not loaded|not fully loaded|delegator|fail connecting|server unavailable"
    "|connection (refused|reset)|closed channel|no available|node (not found|offline|not match)|channel (not|closed)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Place:
    """milvus://[USER:PASSWORD@]HOST:PORT/COLLECTION[?database=NAME&tls=1&ca=FILE&consistency=LEVEL]."""

    host: str
    port: int
    name: str
    token: str = ""
    database: str = "default"
    tls: bool = False
    ca: str = ""
    consistency: str = "strong"  # of searches; what keeps the store right is always read strongly

    @classmethod
    def of(cls, address: str) -> Place:
        """The parts of an address; the token may come from CROW_MILVUS_TOKEN, so that it stands in no shell history."""
        parts = urlsplit(address)
        try:
            host, port = parts.hostname, parts.port or 19530
        except ValueError:
            host, port = None, 0
        name, more = parts.path.strip("/"), dict(parse_qsl(parts.query))
        shape = "milvus://HOST:PORT/COLLECTION"
        if not host or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", name):
            raise StoreError(f"{_shown(address)}: an address is {shape}, the name of letters, digits and _")
        unknown = more.keys() - {"database", "tls", "ca", "consistency"}
        level = more.get("consistency", "strong").lower()
        if unknown or level not in LEVELS:
            what = f"no option named {min(unknown)!r}" if unknown else f"no consistency named {level!r}"
            known = "database, tls, ca, consistency" if unknown else ", ".join(LEVELS)
            raise StoreError(f"{_shown(address)}: {what}; there are: {known}")
        user = ":".join(unquote(p) for p in (parts.username, parts.password) if p)
        token = user or os.environ.get("CROW_MILVUS_TOKEN", "")
        tls = more.get("tls", "") not in ("", "0") or "ca" in more
        return cls(host, port, name, token, more.get("database", "default"), tls, more.get("ca", ""), level)

    def __str__(self) -> str:
        """The address without its secret."""
        asked = {
            "database": self.database,
            "consistency": self.consistency,
            "tls": "1" if self.tls else "",
            "ca": self.ca,
        }
        usual = ("default", "strong", "")
        query = "&".join(f"{k}={v}" for k, v in asked.items() if v not in usual)
        return f"milvus://{self.host}:{self.port}/{self.name}" + (f"?{query}" if query else "")


class Server:
    """Calls to one database of a server; each has a time limit, and is made again while the server is started again."""

    def __init__(self, place: Place) -> None:
        self.place = place
        version = str(self.client.get_server_version())
        numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
        if numbers < OLDEST:
            raise StoreError(
                f"{place}: Milvus {version} is too old; {'.'.join(map(str, OLDEST))} is the first that will do"
            )

    @cached_property
    def client(self) -> Any:
        """A connection. Without gRPC's care for forks: with it one in thirty programs that Ray starts beside it is aborted."""
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # read as gRPC is imported
        try:
            from pymilvus import MilvusClient, MilvusException
        except ImportError:
            raise StoreError("Milvus needs the extra 'scale': pip install 'crow-search[scale]'") from None
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it prints what is raised anyway
        place = self.place
        more = {"server_pem_path": place.ca} if place.ca else {}
        uri = f"{'https' if place.tls else 'http'}://{place.host}:{place.port}"
        try:
            return MilvusClient(uri, token=place.token, db_name=place.database, timeout=CONNECTING, **more)
        except MilvusException as error:
            raise StoreError(f"{place}: {REFUSED if self._answers() else _reason(error)}") from None

    def _answers(self) -> bool:
        """Whether anybody listens there; the client does not tell that from being refused."""
        try:
            with socket.create_connection((self.place.host, self.place.port), CONNECTING):
                return True
        except OSError:
            return False

    def __call__(self, what: str, *args: Any, **kwargs: Any) -> Any:
        """One call by the client's own name for it."""
        from pymilvus import MilvusException

        end, wait = time.monotonic() + PATIENCE, 0.2
        while True:
            try:
                return getattr(self.client, what)(*args, timeout=CALL, **kwargs)
            except MilvusException as error:
                if error.code == NOT_FOUND:
                    raise StoreMoved(f"{self.place}: {_reason(error)}") from None
                if not _away(error) or time.monotonic() > end:
                    raise StoreError(f"{self.place}: {_reason(error)}") from None
            time.sleep(wait)
            wait = min(2 * wait, 5.0)

    def close(self) -> None:
        """Let go of the connection."""
        if "client" in self.__dict__:
            self.client.close()
            del self.client

    def make(self, collection: str, columns: Any, dim: int, index: dict[str, Any], mapped: bool = False) -> None:
        """A collection that can be searched. Any number of processes may ask at once, and die on the way: each step asks
        for what is there already or adds it, and nobody loads before every index is there, since loading fixes them.

        `mapped`: its vectors lie on the query nodes' disks, not in their memory.
        """
        from pymilvus import MilvusClient

        if not self("has_collection", collection):
            schema = MilvusClient.create_schema(auto_id=False)
            for name, kind, more in [*columns, ("vector", "FLOAT_VECTOR", {"dim": dim})]:
                schema.add_field(name, kind_of(kind), **more)
            properties = {"properties": {"mmap.enabled": True}} if mapped else {}
            self("create_collection", collection, schema=schema, consistency_level="Strong", **properties)
        self.index(collection, index, [n for n, kind, more in columns if kind == "INT64" and more.get("indexed")])
        self.load(collection)

    def index(self, collection: str, index: dict[str, Any], scalars: Sequence[str] = ()) -> None:
        """The index over the vectors, and those over numbers that are asked for by value, where they are not there yet."""
        from pymilvus import MilvusClient

        wanted: dict[str, dict[str, Any]] = {name: {"index_type": "STL_SORT"} for name in scalars}
        wanted["vector"] = {"metric_type": "COSINE", **index}
        there = self("list_indexes", collection)
        for name, how in wanted.items():
            if name not in there:
                made = MilvusClient.prepare_index_params(name, index_name=name, **how)
                self("create_index", collection, made)

    def load(self, collection: str) -> None:
        """Let a collection be searched; one that was loaded before it had all its indexes is loaded anew."""
        try:
            self("load_collection", collection)
        except StoreError as error:
            if "index for loaded collection" not in str(error):
                raise
            self("release_collection", collection)
            self("load_collection", collection)

    def drop(self, collection: str) -> None:
        """Forget a collection."""
        self("drop_collection", collection)

    def pointed(self, alias: str) -> str | None:
        """The collection that an alias stands for."""
        try:
            return str(self("describe_alias", alias)["collection_name"])
        except StoreError as error:
            if re.search("alias.*not (found|exist)|not found.*alias|no alias", str(error), re.IGNORECASE):
                return None
            raise

    def name(self, alias: str, collection: str) -> None:
        """Let a new alias stand for a collection; one that is there stays as it is."""
        if self.pointed(alias) is None:
            try:
                self("create_alias", collection, alias)
            except StoreError:
                if self.pointed(alias) is None:
                    raise  # else another process was quicker

    def point(self, alias: str, collection: str) -> None:
        """Let an alias stand for a collection from now on; searches under way end on the old one."""
        self.name(alias, collection)
        if self.pointed(alias) != collection:
            self("alter_alias", collection, alias)

    def count(self, collection: str, test: str = "") -> int:
        """How many rows pass a test."""
        found = self("query", collection, test, output_fields=["count(*)"], consistency_level="Strong")
        return int(found[0]["count(*)"])

    def query(self, collection: str, test: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        """All rows that pass a test; few enough for one answer."""
        found = self("query", collection, test, output_fields=list(columns), consistency_level="Strong")
        return list(found)

    def pages(
        self, collection: str, columns: Sequence[str], test: str = "", among: tuple[int, int] = (0, SPAN)
    ) -> Iterator[list[dict[str, Any]]]:
        """All rows that pass a test by rising id, a few thousand at a time."""
        for low, high in spans(self.count(collection, test), among=among):
            where = f"{within(low, high)} and {test}" if test else within(low, high)
            yield sorted(self.query(collection, where, columns), key=lambda row: int(row["id"]))


def spans(count: int, page: int = PAGE, among: tuple[int, int] = (0, SPAN)) -> Iterator[tuple[int, int]]:
    """Ranges among the ids that hold so many rows in about pages of that size: ids are spread evenly."""
    parts, (low, high) = max(1, -(-count // page)), among
    edges = (low + (high - low) * i // parts for i in range(parts + 1))
    return pairwise(edges)


def within(low: int, high: int) -> str:
    """The test for ids from low to below high."""
    return f"id >= {low} and id <= {high - 1}"


def quoted(text: str) -> str:
    """A text as it stands in a test."""
    return '"' + re.sub(r'[\x00-\x1f"\\\x7f]', lambda m: f"\\u{ord(m[0]):04x}", text) + '"'


def kind_of(name: str) -> Any:
    """The type of a column by its name."""
    from pymilvus import DataType

    return DataType[name]


def _away(error: Any) -> bool:
    """Whether the server may answer the same call later."""
    return error.code in AWAY or bool(LEFT.search(re.sub(r"\[[^\]]*\]", "", str(error))))


def _shown(address: str) -> str:
    return re.sub(r"//[^/@]*@", "//", address)


def _reason(error: Any) -> str:
    text = " ".join(str(getattr(error, "message", "") or error).split())
    lower = text.lower()
    if "fail connecting" in lower or "unavailable" in lower or "deadline" in lower:
        return f"Milvus cannot be reached there ({text[:200]})"
    if "auth" in lower or "permission" in lower or "password" in lower:
        return f"Milvus refuses the token: CROW_MILVUS_TOKEN or USER:PASSWORD@ in the address ({text[:200]})"
    return text[:400]
