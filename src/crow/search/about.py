"""What a Milvus store knows beside its pictures: settings, cut to the length of a text there, and failures."""

from __future__ import annotations

import base64
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from crow.framework.reduce import Whitening
from crow.search.milvus_rows import PATH, key_of, read_path, stored_path
from crow.search.milvus_server import Server, quoted
from crow.search.record import printable
from crow.search.store import Failure

PART = 60_000  # characters of a setting in one row; a text in Milvus holds 65,535 bytes
INTERNAL = "searched "  # settings that begin so belong to a derived collection, and are shown to nobody
COLUMNS: list[tuple[str, str, dict[str, Any]]] = [
    ("pk", "VARCHAR", {"is_primary": True, "max_length": 256}),
    ("id", "INT64", {"indexed": True}),  # of a setting its parts, of a failure where its key lies among all keys
    ("name", "VARCHAR", {"max_length": PATH}),  # of the setting, or the path that failed
    ("text", "VARCHAR", {"max_length": PATH}),
    ("failed", "BOOL", {}),
    ("size", "INT64", {}),  # of a setting the number of this part
    ("mtime", "INT64", {}),  # of a setting when it was written
]
NAMES = [name for name, _, _ in COLUMNS]
FLAT: dict[str, Any] = {"index_type": "FLAT", "params": {}}


class About:
    """The collection NAME_about."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name

    def there(self) -> bool:
        """Whether it was made."""
        return bool(self.server("has_collection", self.name))

    def make(self) -> None:
        """Make it, or what a maker that was killed left to do."""
        self.server.make(self.name, COLUMNS, 2, FLAT)

    def whole(self) -> bool:
        """Whether it was made to the end: its first settings come last."""
        if not self.there():
            return False
        self.make()
        return "uuid" in self.settings()

    def settings(self, internal: bool = False) -> dict[str, Any]:
        """All settings, each as it was last written whole; bytes stay bytes, everything else is JSON."""
        versions: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
        for row in self.server.query(self.name, "failed == false", NAMES):
            versions[row["name"]][row["mtime"]].append(row)
        whole = {name: _newest(found) for name, found in versions.items() if name.startswith(INTERNAL) == internal}
        return {name: _value(text) for name, text in whole.items() if text}

    def configure(self, settings: dict[str, Any]) -> None:
        """Write settings. One that fits into a row is replaced there; a longer one gets new rows, and counts when all are there."""
        now, rows, names = time.time_ns(), [], []
        for name, value in settings.items():
            text = "b" + base64.b64encode(value).decode() if isinstance(value, bytes) else "j" + json.dumps(value)
            parts = [text[i : i + PART] for i in range(0, len(text), PART)]
            keys = [name] if len(parts) == 1 else [f"{name}/{now}/{i}" for i in range(len(parts))]
            names += [] if name == "generation" else [name]
            rows += [
                _row(k, name, p, False, i, now, len(parts)) for i, (k, p) in enumerate(zip(keys, parts, strict=True))
            ]
        for start in range(0, len(rows), 50):
            self.server("upsert", self.name, rows[start : start + 50])
        some = f"[{', '.join(map(quoted, names))}]"  # a row that is replaced in place is swept by nobody: it may be another's
        self._sweep(f"name in {some} and mtime < {now} and pk not in {some}") if names else None

    def _sweep(self, test: str) -> None:
        gone = self.server.query(self.name, f"failed == false and {test}", ["pk"])
        if gone:
            self.server("delete", self.name, ids=[row["pk"] for row in gone])

    def generation(self) -> int:
        """The newest one that was written, as far as is known without waiting."""
        found = self.server(
            "query", self.name, 'pk == "generation"', output_fields=["text"], consistency_level="Session"
        )
        return int(json.loads(found[0]["text"][1:])) if found else 0

    def whitening_of(self, collection: str) -> Whitening | None:
        """What the vectors of a derived collection were reduced with."""
        data = self.settings(internal=True).get(f"{INTERNAL}{collection} whitening")
        return Whitening.from_bytes(data) if data else None

    def searched(self, collection: str, known: dict[str, Any], whitening: bytes | None) -> None:
        """Note how a derived collection was made."""
        self.configure({f"{INTERNAL}{collection}": known, f"{INTERNAL}{collection} whitening": whitening})

    def forget(self, collection: str) -> None:
        """Forget how a derived collection was made."""
        names = quoted(f"{INTERNAL}{collection}"), quoted(f"{INTERNAL}{collection} whitening")
        self._sweep(f"name in [{', '.join(names)}]")

    def fail(self, failures: Sequence[Failure]) -> None:
        """Write failures."""
        rows = []
        for f in failures:
            key, reason = key_of(f.path), printable(f.reason)[:1000]
            rows.append(
                _row(f"failed {key}", stored_path(f.path), reason, True, f.size, f.mtime, int(key[:16], 16) >> 11)
            )
        for start in range(0, len(rows), 1000):
            self.server("upsert", self.name, rows[start : start + 1000])

    def recovered(self, keys: Sequence[str]) -> None:
        """Forget the failures of these paths, by key."""
        for start in range(0, len(keys), 1000):
            self.server("delete", self.name, ids=[f"failed {key}" for key in keys[start : start + 1000]])

    def failures(self, paths: Iterable[str] | None = None) -> dict[str, Failure]:
        """Every file that gave no vector, by path; or those of these paths."""
        if paths is None:
            pages = self.server.pages(self.name, NAMES, "failed == true")
        else:
            keys = [quoted(f"failed {key_of(path)}") for path in paths]
            tests = (f"pk in [{', '.join(keys[i : i + 500])}]" for i in range(0, len(keys), 500))
            pages = (self.server.query(self.name, test, NAMES) for test in tests)
        found = [Failure(read_path(r["name"]), r["text"], r["size"], r["mtime"]) for page in pages for r in page]
        return {f.path: f for f in sorted(found, key=lambda f: f.path)}

    def failed(self) -> int:
        """How many failed."""
        return self.server.count(self.name, "failed == true")


def _row(key: str, name: str, text: str, failed: bool, size: int, mtime: int, number: int) -> dict[str, Any]:
    plain = {"pk": key, "id": number, "name": name, "text": text, "failed": failed, "size": size, "mtime": mtime}
    return {**plain, "vector": [1.0, 0.0]}


def _newest(versions: dict[int, list[dict[str, Any]]]) -> str:
    """The text of a setting from the newest version of which all parts are there."""
    for when in sorted(versions, reverse=True):
        parts = sorted(versions[when], key=lambda row: int(row["size"]))
        if len(parts) == parts[0]["id"]:
            return "".join(row["text"] for row in parts)
    return ""


def _value(text: str) -> Any:
    return base64.b64decode(text[1:]) if text[0] == "b" else json.loads(text[1:])
