"""The picture files below folders: sorted, without what is hidden, thrown away, or named in a `.crowignore`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from crow.extract.formats import EXTENSIONS
from crow.extract.picture import PictureError

IGNORE_FILE = ".crowignore"
# Folders that hold copies, previews or what was thrown away, in small letters; hidden ones are left out anyway.
LEFT_OUT = frozenset(
    {
        "$recycle.bin",  # Windows
        "system volume information",
        "thumbs",
        "@eadir",  # Synology
        "#recycle",
        "#snapshot",
        "@recycle",  # QNAP, beside its hidden .@__thumb
        "lost+found",  # Linux
        "__macosx",  # what a Mac adds to zip archives
    }
)

Folders = str | Path | Iterable[str | Path]
OnError = Callable[[Path, str], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """A picture file and what tells whether it has changed."""

    path: Path
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class _Rule:
    """One line of a .crowignore: the last one that matches decides."""

    pattern: re.Pattern[str]  # over the path relative to the folder of the file
    keep: bool  # the line began with !
    folders_only: bool  # the line ended in /


_Rules = tuple[tuple[int, tuple[_Rule, ...]], ...]  # length of the folder's path, its rules; outer folders first


def walk(folders: Folders, on_error: OnError | None = None) -> Iterator[Path]:
    """The picture files below the folders, in the order of their paths; a file named itself is always among them.

    A folder that cannot be read is told to `on_error` with the reason and left out. A folder is entered once,
    whatever links lead to it. A path that does not exist is a PictureError, at once.
    """
    return (Path(path) for path, _ in _found(_checked(folders), on_error or _silent))


def entries(folders: Folders, on_error: OnError | None = None) -> Iterator[Entry]:
    """As `walk`, with the size and the time of change of each file."""
    return _with_stat(_found(_checked(folders), on_error or _silent), on_error or _silent)


def parse_ignore(text: str) -> tuple[_Rule, ...]:
    """The rules of a `.crowignore`, which is written as a `.gitignore` is."""
    return tuple(rule for line in re.split(r"\r?\n", text) if (rule := _rule(line)))


def _silent(path: Path, reason: str) -> None:
    pass


def _checked(folders: Folders) -> list[tuple[str, os.stat_result]]:
    paths = [folders] if isinstance(folders, str | Path) else list(folders)
    return [(os.fspath(path), _stat(path)) for path in paths]


def _stat(path: str | Path) -> os.stat_result:
    try:
        return os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise PictureError(path, "no such file or folder") from None
    except OSError as error:
        raise PictureError(path, error.strerror or str(error)) from None


def _with_stat(found: Iterator[tuple[str, os.DirEntry[str] | None]], on_error: OnError) -> Iterator[Entry]:
    for path, entry in found:
        try:
            info = entry.stat() if entry else os.stat(path)  # noqa: PTH116
        except FileNotFoundError:
            continue  # gone since the folder was read
        except OSError as error:
            on_error(Path(path), error.strerror or str(error))
        else:
            yield Entry(Path(path), info.st_size, info.st_mtime_ns)


def _found(roots: list[tuple[str, os.stat_result]], on_error: OnError) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
    """Every picture file once, depth first; explicit files as they are named."""
    entered: set[tuple[int, int]] = set()
    named: set[str] = set()
    for root, info in roots:
        if stat.S_ISDIR(info.st_mode):
            for entry in _below(root, info, entered, on_error):
                if not named or os.path.abspath(entry.path) not in named:  # noqa: PTH100
                    yield entry.path, entry
        elif os.path.abspath(root) not in named:  # noqa: PTH100
            named.add(os.path.abspath(root))  # noqa: PTH100
            yield root, None


def _below(
    root: str, info: os.stat_result, entered: set[tuple[int, int]], on_error: OnError
) -> Iterator[os.DirEntry[str]]:
    """The picture files below one folder, in the order of their paths, without recursion (folders may be deep)."""
    if (info.st_dev, info.st_ino) in entered:
        return
    entered.add((info.st_dev, info.st_ino))
    stack = [_children(root, (), on_error)]
    while stack:
        child = next(stack[-1], None)
        if child is None:
            stack.pop()
            continue
        entry, is_folder, rules = child
        if not is_folder:
            yield entry
        elif (identity := _identity(entry)) not in entered:
            entered.add(identity)
            stack.append(_children(entry.path, rules, on_error))


def _identity(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        info = entry.stat()
    except OSError:
        return (-1, entry.inode())
    return info.st_dev, info.st_ino


def _children(folder: str, rules: _Rules, on_error: OnError) -> Iterator[tuple[os.DirEntry[str], bool, _Rules]]:
    """The picture files and the folders of one folder that are not left out: (entry, is it a folder, rules)."""
    try:
        with os.scandir(folder) as scan:
            children = list(scan)
        if any(child.name == IGNORE_FILE for child in children):
            text = Path(folder, IGNORE_FILE).read_text("utf-8-sig", "surrogateescape")
            rules = (*rules, (len(os.path.join(folder, "")), parse_ignore(text)))  # noqa: PTH118
    except OSError as error:
        on_error(Path(folder), "no permission to read it" if isinstance(error, PermissionError) else f"{error}")
        return
    wanted = []
    for child in children:
        is_folder = _is_folder(child)
        if _is_wanted(child, is_folder) and not (rules and _ignored(child.path, is_folder, rules)):
            wanted.append((child.name + "/" * is_folder, child, is_folder))
    for _, child, is_folder in sorted(wanted, key=lambda item: item[0]):
        yield child, is_folder, rules


def _is_folder(child: os.DirEntry[str]) -> bool:
    try:
        return child.is_dir()
    except OSError:  # a link to itself
        return False


def _is_wanted(child: os.DirEntry[str], is_folder: bool) -> bool:
    if child.name.startswith("."):
        return False
    if is_folder:
        return child.name.lower() not in LEFT_OUT
    try:
        return os.path.splitext(child.name)[1].lower() in EXTENSIONS and child.is_file()  # noqa: PTH122
    except OSError:
        return False


def _ignored(path: str, is_folder: bool, rules: _Rules) -> bool:
    """Whether the last rule that matches says so, the innermost `.crowignore` first."""
    for length, own in reversed(rules):
        for rule in reversed(own):
            if (is_folder or not rule.folders_only) and rule.pattern.fullmatch(path, length):
                return not rule.keep
    return False


def _rule(line: str) -> _Rule | None:
    line = re.sub(r"(?<!\\) +$", "", line)
    if not line or line.startswith("#"):
        return None
    keep = line.startswith("!")
    line = line.removeprefix("!")
    folders_only = line.endswith("/")
    line = line.removesuffix("/")
    anchored = "/" in line
    expression = _expression(line.removeprefix("/"))
    if not anchored:
        expression = f"(?:.*/)?{expression}"
    try:
        return _Rule(re.compile(expression, re.DOTALL), keep, folders_only) if line else None
    except re.error:
        return None  # such as [z-a]: matches nothing


_TOKENS = re.compile(
    r"(?P<deep>(?:\A|(?<=/))\*{2,}/)|(?P<rest>(?:\A|(?<=/))\*{2,}\Z)|(?P<star>\*+)|(?P<one>\?)"
    r"|(?P<set>\[[!^]?\]?[^\]]*\])|\\(?P<escaped>.)|(?P<other>.)",
    re.DOTALL,
)
_FIXED = {"deep": "(?:.*/)?", "rest": ".*", "star": "[^/]*", "one": "[^/]"}


def _expression(glob: str) -> str:
    """A regular expression for a glob: * and ? stay within a folder, ** crosses folders."""
    parts = []
    for token in _TOKENS.finditer(glob):
        kind, text = token.lastgroup, token[token.lastgroup or 0]
        if kind in _FIXED:
            parts.append(_FIXED[kind])
        elif kind == "set":
            inner = text[1:-1]
            negated = inner[:1] in ("!", "^")
            inner = inner[negated:].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
            parts.append(f"(?!/)[{'^' * negated}{inner}]")
        else:
            parts.append(re.escape(text))
    return "".join(parts)
