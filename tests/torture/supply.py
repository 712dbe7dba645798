"""Supply chain: what is installed and under which licence, what is downloaded and read, and what two auditors say."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from torture import shim
from torture.campaign import Lane, Try

ROOT = Path(__file__).parents[2]
LICENCES = ROOT / "docs" / "licences.md"
FREE = (
    "MIT",
    "BSD",
    "Apache",
    "PSF",
    "Python Software Foundation",
    "ISC",
    "MPL",
    "Mozilla",
    "Zlib",
    "CC0",
    "0BSD",
    "HPND",
)
UNSAID = {"rawpy": "MIT; LibRaw inside: LGPL-2.1 or CDDL-1.0", "pillow_heif": "BSD-3-Clause; libheif, libde265, x265 inside: LGPL-3.0, GPL-2.0"}  # fmt: skip
NET = {"urllib", "http", "socket", "requests", "httpx", "ftplib", "aiohttp"}
MAY_NET = {
    "extract/download.py": "the one that downloads; hosts and hashes are checked there",
    "search/disk.py": "asks for the name of this machine",
    "search/cluster.py": "asks whether anybody answers at the address of a cluster",
    "search/milvus_server.py": "reads the address of a server, and asks whether anybody answers there",
} | {
    f"app/serve/{name}.py": "the server itself"
    for name in ("run", "guard", "server", "api", "site", "problems", "uploads")
}
UNPICKLERS = {"evaluate/pickles.py", "extract/checkpoints.py"}  # each with a reader that allows plain arrays alone
OURS = {"RECORD", "FAILURE", "column", "marks", "where", "places", "now", "APPLICATION", "PAGE", "number + 1"} | {
    "MIGRATIONS[number]", "'; '.join(steps)", "'DELETE' if is_network(self.folder) else 'WAL'"
}  # fmt: skip
PICKLES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "_pickle", "jsonpickle"}


def supply(lane: Lane) -> Iterator[Try]:
    """Each check once."""
    for name, check in CHECKS.items():
        try:
            check()
        except Unreachable as error:
            yield Try(f"{name}: {error}, not tried", count=0)
        except Exception as error:
            yield Try(name, " ".join(str(error).split())[:600] or type(error).__name__)
        else:
            yield Try(name)


class Unreachable(Exception):
    """Somebody who would have to be asked does not answer here."""


def licences() -> dict[str, str]:
    """Everything that comes with crow-search[all], and its licence."""
    found: dict[str, str] = {}
    waiting = ["crow-search"]
    while waiting:
        name = waiting.pop()
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue  # for another system
        if about["Name"] in found:
            continue
        found[about["Name"]] = UNSAID.get(about["Name"]) or licence_of(about)
        for text in metadata.requires(name) or []:
            wanted = Requirement(text)
            extra = "all" if name == "crow-search" else ""
            chosen = {"", extra, *(("cpu", "paper", "serve", "watch", "parquet") if extra else ())}
            if wanted.marker is None or any(wanted.marker.evaluate({"extra": e}) for e in chosen):
                waiting.append(wanted.name)
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def licence_of(about: metadata.PackageMetadata) -> str:
    """A licence as its package says it: in short where it says it in short."""
    said = about.get("License-Expression") or about.get("License") or ""
    kinds = [c.split(" :: ")[-1] for c in about.get_all("Classifier") or [] if c.startswith("License")]
    return said if said and "\n" not in said and len(said) < 200 else ", ".join(kinds)


def check_licences() -> None:
    """Each is known and free, and the page lists them all."""
    page = LICENCES.read_text() if LICENCES.exists() else ""
    for name, licence in licences().items():
        assert any(free in licence for free in FREE), f"{name}: licence {licence!r}"
        assert f"| {name} |" in page, f"{name} is not in docs/licences.md: python -m torture.supply"


def check_downloads() -> None:
    """Nothing but one file talks to the network, and every address there is comes with a hash."""
    from crow.extract.networks import NETWORKS

    for path, tree in sources():
        imported = {n.split(".")[0] for n in imports(tree)} & NET
        assert not imported or path in MAY_NET, f"{path} imports {', '.join(imported)}"
        for call in calls(tree, {"Source"}):
            assert len(call.args) >= 2, f"{path}:{call.lineno}: a Source without a sha256"
    for name, network in NETWORKS.items():
        source = network.source
        assert source is None or re.fullmatch(r"[0-9a-f]{8,64}", source.sha256), f"{name}: no sha256 of its weights"


def check_pickles() -> None:
    """No pickle is loaded but through the restricted readers; arrays and torch files are read without pickles."""
    for path, tree in sources():
        loose = {n.split(".")[0] for n in imports(tree)} & PICKLES
        assert not loose or path in UNPICKLERS, f"{path} imports {', '.join(loose)}"
        for call in calls(tree, {"load", "loads", "Unpickler", "read_pickle"}):
            owner = (
                call.func.value.id
                if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
                else ""
            )
            options = {k.arg: k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)}
            assert owner not in PICKLES, f"{path}:{call.lineno}: {owner}.load"
            assert owner != "np" or options.get("allow_pickle") is False, f"{path}:{call.lineno}: np.load"
            assert owner != "torch" or options.get("weights_only") is True, f"{path}:{call.lineno}: torch.load"


def check_sql() -> None:
    """What is formatted into SQL are names and question marks of ours; every value is a parameter."""
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr) and re.match(
                r"(SELECT|INSERT|UPDATE|DELETE|PRAGMA|BEGIN) ", _text(node)
            ):
                names = {ast.unparse(part.value) for part in node.values if isinstance(part, ast.FormattedValue)}
                assert names <= OURS, f"{path}:{node.lineno}: {', '.join(sorted(names - OURS))} in SQL"


def _text(node: ast.JoinedStr) -> str:
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)


def check_code() -> None:
    """bandit finds nothing, or there is a reason beside it."""
    command = [sys.executable, "-m", "bandit", "-q", "-r", "src", "-c", "pyproject.toml", "-f", "custom"]
    done = subprocess.run([*command, "--msg-template", "{relpath}:{line}: {test_id} {msg}"], cwd=ROOT, capture_output=True, text=True, env=shim.plain_environment())  # fmt: skip
    if "No module named" in done.stderr:
        raise Unreachable("bandit is not installed")
    assert done.returncode == 0, done.stdout
    for file in sorted((ROOT / "src").rglob("*.py")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            assert not re.search(r"#\s*nosec\b", line) or re.search(r"# nosec B\d+  # \w+", line), (
                f"{file.name}:{number}: nosec without a reason"
            )


def check_advisories() -> None:
    """pip-audit knows of nothing against what is installed; asked in the long run only, since the answer changes by itself."""
    if os.environ.get("CROW_SAMPLE"):
        raise Unreachable("asked in the long run only")
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--progress-spinner",
        "off",
        "--strict",
        "--skip-editable",
        "--timeout",
        "10",
    ]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env=shim.plain_environment(), timeout=120
        )
    except subprocess.TimeoutExpired:
        raise Unreachable("no source of advisories answers") from None
    said = done.stdout + done.stderr
    if (
        "could not be audited" in said
        or "ConnectionError" in said
        or "No module named" in said
        or "Max retries" in said
    ):
        raise Unreachable("no source of advisories can be reached from here")
    assert done.returncode == 0, said[-500:]


CHECKS: dict[str, Callable[[], None]] = {
    "licences": check_licences,
    "hashes of what is downloaded": check_downloads,
    "no pickle": check_pickles,
    "SQL": check_sql,
    "bandit": check_code,
    "pip-audit": check_advisories,
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Every file of the product, parsed."""
    for file in sorted((ROOT / "src" / "crow").rglob("*.py")):
        yield str(file.relative_to(ROOT / "src" / "crow")), ast.parse(file.read_text())


def imports(tree: ast.Module) -> Iterator[str]:
    """The modules that a file names in imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def calls(tree: ast.Module, names: set[str]) -> Iterator[ast.Call]:
    """Calls of functions of these names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in names:
                yield node


if __name__ == "__main__":
    rows = "\n".join(f"| {name} | {licence} |" for name, licence in licences().items())
    LICENCES.write_text(
        "# Licences of what is installed with crow-search[all]\n\nWritten by `make docs`; `make torture` checks it.\n\n"
        f"| package | licence |\n|---|---|\n{rows}\n"
    )
