"""`crow.extract.walk` against what the folders hold, and against git's own reading of ignore files."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crow.extract import walk as room
from crow.extract.images import PictureError, entries, walk
from crow.extract.walk import IGNORE_FILE


def plant(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * len(path.name))


def names(root: Path, *folders: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in walk(folders or root)]


def test_pictures_by_their_extension_whatever_its_case_in_the_order_of_paths(tmp_path: Path) -> None:
    pictures = [
        "a/x.jpg",
        "a-b.JPG",
        "a.png",
        "b/c/d.HEIC",
        "b/c.dng",
        "b/c0.TIFF",
        "z.avif",
        "Z.webp",
        "é.gif",
        "1.bmp",
    ]
    plant(tmp_path, *pictures, "a/notes.txt", "b/movie.mov", "jpg", "c.jpg.part", "d.xmp")
    (tmp_path / "folder.jpg").mkdir()
    assert names(tmp_path) == sorted(pictures)


def test_hidden_thrown_away_and_thumbnails_are_left_out(tmp_path: Path) -> None:
    left_out = [".hidden/a.jpg", ".a.jpg", "._b.jpg", ".Trash-1000/a.jpg", "$RECYCLE.BIN/a.jpg", "x/@eaDir/a.jpg"]
    left_out += [".@__thumb/a.jpg", "#recycle/a.jpg", "lost+found/a.jpg", "Thumbs/a.jpg", "__MACOSX/a.jpg"]
    plant(tmp_path, *left_out, "x/kept.jpg")
    assert names(tmp_path) == ["x/kept.jpg"]
    assert names(tmp_path, tmp_path / ".hidden") == [".hidden/a.jpg"]  # asked for by name


def test_files_named_themselves_come_as_they_are_and_only_once(tmp_path: Path) -> None:
    plant(tmp_path, "a.jpg", "b.jpg", "notes.txt", "sub/c.jpg")
    wanted = (tmp_path / "notes.txt", tmp_path / "b.jpg", tmp_path / "sub", tmp_path, tmp_path / "b.jpg")
    assert names(tmp_path, *wanted) == ["notes.txt", "b.jpg", "sub/c.jpg", "a.jpg"]


def test_one_folder_many_or_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "p/a.jpg")
    assert list(walk(str(tmp_path))) == list(walk([tmp_path])) == [tmp_path / "p" / "a.jpg"]
    monkeypatch.chdir(tmp_path)
    assert list(walk(".")) == list(walk("p/")) == [Path("p/a.jpg")]
    assert list(walk([])) == []


def test_a_missing_path_is_refused_before_anything_is_found(tmp_path: Path) -> None:
    plant(tmp_path, "a.jpg")
    for find in (walk, entries):
        with pytest.raises(PictureError, match=r"none: no such file or folder$"):
            find([tmp_path, tmp_path / "none"])
    with pytest.raises(PictureError, match=r"no such file or folder$"):
        walk("a\0b")


def test_entries_tell_size_and_time(tmp_path: Path) -> None:
    plant(tmp_path, "a.jpg", "sub/long_name.jpg")
    os.utime(tmp_path / "a.jpg", ns=(5, 1_700_000_000_123_456_789))
    found = list(entries([tmp_path / "a.jpg", tmp_path]))
    assert [(e.path.name, e.size) for e in found] == [("a.jpg", 5), ("long_name.jpg", 13)]
    assert found[0].mtime_ns == 1_700_000_000_123_456_789
    assert all(e.mtime_ns == e.path.stat().st_mtime_ns for e in found)


def test_links_are_followed_once_and_loops_survived(tmp_path: Path) -> None:
    plant(tmp_path, "a/x.jpg", "away/y.jpg", "root/b/z.jpg")
    root = tmp_path / "root"
    (root / "b" / "up").symlink_to(root)
    (root / "b" / "self").symlink_to(root / "b" / "self")
    (root / "b" / "self.jpg").symlink_to(root / "b" / "self.jpg")
    (root / "b" / "dangling.jpg").symlink_to(tmp_path / "nothing")
    (root / "c").symlink_to(tmp_path / "away")
    (root / "d").symlink_to(tmp_path / "away")
    (root / "e.jpg").symlink_to(tmp_path / "a" / "x.jpg")
    assert names(tmp_path, root) == ["root/b/z.jpg", "root/c/y.jpg", "root/e.jpg"]


def test_pipes_are_no_pictures(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    assert names(tmp_path) == []


def test_an_unreadable_folder_is_told_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "a/1.jpg", "closed/2.jpg", "z/3.jpg")
    closed = tmp_path / "closed"
    closed.chmod(0)
    if os.access(closed, os.R_OK):  # root may read everything
        scandir = os.scandir

        def refuse(path: str) -> object:
            if path == str(closed):
                raise PermissionError(13, "Permission denied", path)
            return scandir(path)

        monkeypatch.setattr(room.os, "scandir", refuse)
    told: list[tuple[Path, str]] = []
    try:
        found = list(walk(tmp_path, on_error=lambda path, reason: told.append((path, reason))))
    finally:
        closed.chmod(0o700)
    assert [path.name for path in found] == ["1.jpg", "3.jpg"]
    assert told == [(closed, "no permission to read it")]


def test_a_file_that_goes_while_walking_is_passed_over(tmp_path: Path) -> None:
    plant(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    found = entries(tmp_path)
    assert next(found).path.name == "a.jpg"
    (tmp_path / "b.jpg").unlink()
    assert [e.path.name for e in found] == ["c.jpg"]


def test_names_of_no_encoding(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)  # noqa: PTH102
    Path(os.fsdecode(folder + b"/\xff.jpg")).touch()
    [path] = walk(tmp_path)
    assert os.fsencode(path) == folder + b"/\xff.jpg"
    (tmp_path / IGNORE_FILE).write_bytes(b"caf\xe9/\n")
    assert list(walk(tmp_path)) == []


def test_folders_deeper_than_python_recurses(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(1100):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("deep.jpg", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    finally:
        os.close(here)
    assert [path.name for path in walk(tmp_path)] == ["deep.jpg"]
    subprocess.run(["rm", "-r", str(tmp_path / "d")], check=True)


def test_walking_is_lazy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, *(f"{i:02}/a.jpg" for i in range(20)))
    asked: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(room.os, "scandir", lambda path: (asked.append(path), scandir(path))[1])
    next(walk(tmp_path))
    assert len(asked) == 2


# .crowignore


def test_a_crowignore_reads_as_a_gitignore(tmp_path: Path) -> None:
    plant(
        tmp_path,
        *(
            "keep.jpg",
            "bad.jpg",
            "sub/bad.jpg",
            "top.jpg",
            "sub/top.jpg",
            "export/a.jpg",
            "sub/export/a.jpg",
            "x/export.jpg",
        ),
        *("a/b/c/raw.jpg", "a/raw.jpg", "tmp/1.jpg", "tmp/best.jpg", "#1.jpg", "!2.jpg", "s p.jpg", "in/deep/er/1.jpg"),
    )
    (tmp_path / IGNORE_FILE).write_text(
        "\ufeff# what is not wanted\n\nbad.jpg\n/top.jpg   \r\nexport/\na/**/raw.jpg\ntmp/*\n!tmp/best.jpg\n\\#1.jpg\n\\!2.jpg\ns\\ p.jpg\nin/**\n",
        encoding="utf-8",
    )
    assert names(tmp_path) == ["keep.jpg", "sub/top.jpg", "tmp/best.jpg", "x/export.jpg"]


def test_an_inner_crowignore_overrules_an_outer_one(tmp_path: Path) -> None:
    plant(tmp_path, "a.jpg", "in/a.jpg", "in/b.jpg", "in/deep/a.jpg", "out/a.jpg")
    (tmp_path / IGNORE_FILE).write_text("a.jpg\n")
    (tmp_path / "in" / IGNORE_FILE).write_text("!a.jpg\n/b.jpg\n")
    assert names(tmp_path) == ["in/a.jpg", "in/deep/a.jpg"]


def test_a_folder_whose_crowignore_cannot_be_read_is_left_out_and_told(tmp_path: Path) -> None:
    plant(tmp_path, "a/1.jpg", "b/2.jpg")
    (tmp_path / "a" / IGNORE_FILE).mkdir()
    told: list[Path] = []
    assert [p.name for p in walk(tmp_path, on_error=lambda path, _: told.append(path))] == ["2.jpg"]
    assert told == [tmp_path / "a"]


PARTS = st.sampled_from(["a", "b", "ab", "a.jpg", "b.jpg", "ab.jpg", "*", "**", "a*", "*.jpg", "?", "?b*", "[ab]", "[!a]*", "[a-b].jpg", "***", "a**b"])  # fmt: skip
LINES = st.builds(
    lambda bang, lead, parts, tail: bang + lead + "/".join(parts) + tail,
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "", "/"]),
    st.lists(PARTS, min_size=1, max_size=3),
    st.sampled_from(["", "", "/", "  ", "\\", "/**"]),
)
PATHS = st.lists(st.sampled_from(["a", "b", "ab", "ba"]), max_size=3).flatmap(
    lambda folders: st.sampled_from(["a.jpg", "b.jpg", "ab.jpg", "c.jpg"]).map(lambda name: "/".join([*folders, name]))
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed, whose reading of ignore files is the measure here")
    place = tmp_path_factory.mktemp("git")
    subprocess.run(["git", "init", "-q", str(place)], check=True)
    return place


@settings(max_examples=60, deadline=None)
@given(
    st.sets(PATHS, min_size=1, max_size=12),
    st.lists(LINES, min_size=1, max_size=5),
    st.none() | st.lists(LINES, min_size=1, max_size=3),
)
def test_what_git_would_leave_out(place: Path, paths: set[str], outer: list[str], inner: list[str] | None) -> None:
    root = place / "work"
    shutil.rmtree(root, ignore_errors=True)
    plant(root, *paths)
    (root / IGNORE_FILE).write_text("\n".join(outer))
    if inner and (root / "a").is_dir():
        (root / "a" / IGNORE_FILE).write_text("\n".join(inner))
    command = ["git", "-C", str(root), "ls-files", "-z", "--others", f"--exclude-per-directory={IGNORE_FILE}"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    assert names(root) == sorted(name for name in listed if name.endswith(".jpg"))
