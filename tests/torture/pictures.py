"""Pictures: broken files of every format and bombs. No crash, no hang over ten seconds, memory under a gigabyte."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random

import numpy as np

from crow.extract.images import EXTENSIONS, PictureError, prepare
from crow.recipe import Size, View
from torture import seeds, shim
from torture.campaign import Lane, Try
from torture.children import Ended, Say, in_child

SECONDS, MEMORY = 10, 1000  # for one file; MB, of the whole process
BATCH = 100  # files that one child reads
VIEW = View(size=Size("largest", 256))
KINDS: list[Callable[[Random, bytearray, list[bytes]], None]] = []


def mutation(function: Callable[[Random, bytearray, list[bytes]], None]) -> Callable[..., None]:
    """One way of spoiling a file in place."""
    KINDS.append(function)
    return function


@mutation
def header(random: Random, data: bytearray, others: list[bytes]) -> None:
    """Bytes near the beginning, often to their extremes."""
    for _ in range(random.randint(1, 8)):
        data[min(int(random.random() ** 2 * 400), len(data) - 1)] = random.choice(
            [0, 255, 127, 128, random.getrandbits(8)]
        )


@mutation
def anywhere(random: Random, data: bytearray, others: list[bytes]) -> None:
    """Bits anywhere."""
    for _ in range(random.randint(1, 30)):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


@mutation
def cut(random: Random, data: bytearray, others: list[bytes]) -> None:
    """The end is missing."""
    del data[random.randrange(len(data)) :]


@mutation
def number(random: Random, data: bytearray, others: list[bytes]) -> None:
    """A length or an offset that is much too large, or negative."""
    at = random.randrange(max(1, len(data) - 8))
    width = random.choice([2, 4, 4, 8])
    value = random.choice([0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), random.getrandbits(8 * width)])
    data[at : at + width] = value.to_bytes(width, random.choice(["little", "big"]))  # type: ignore[arg-type]


@mutation
def spliced(random: Random, data: bytearray, others: list[bytes]) -> None:
    """A piece of another file, or of itself, inserted or put over what was there."""
    other = random.choice([*others, bytes(data)])
    start = random.randrange(max(1, len(other)))
    piece = other[start : start + random.randint(1, 400)]
    at = random.randrange(len(data) + 1)
    data[at : at + random.choice([0, len(piece)])] = piece


@mutation
def markers(random: Random, data: bytearray, others: list[bytes]) -> None:
    """JPEG: a segment twice, gone, or another; PNG: a chunk of garbage with a right checksum."""
    if data[:2] == b"\xff\xd8":
        found = [m.start() for m in re.finditer(rb"\xff[\xc0-\xfe]", data)]
        at = random.choice([2, *found])
        body = random.randbytes(random.randint(0, 60))
        kind = random.choice([0xC0, 0xC2, 0xC4, 0xDA, 0xDB, 0xDD, 0xE0, 0xE1, 0xE2, 0xEE, 0xD9, 0xFE])
        data[at:at] = bytes([0xFF, kind]) + (len(body) + random.choice([2, 2, 0, 9])).to_bytes(2, "big") + body
    elif data[:4] == b"\x89PNG":
        kind = random.choice([b"IDAT", b"PLTE", b"tRNS", b"iCCP", b"eXIf", b"acTL", b"fcTL", b"fdAT", b"zTXt", b"IHDR"])
        body = random.choice([random.randbytes(random.randint(0, 80)), zlib.compress(random.randbytes(50))])
        at = random.choice([0, *(m.start() - 4 for m in re.finditer(rb"IDAT|IEND", data))])
        data[at:at] = len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")
    else:
        spliced(random, data, others)


@mutation
def garbage(random: Random, data: bytearray, others: list[bytes]) -> None:
    """EXIF and colour profiles of noise."""
    for mark in (rb"Exif\0\0", rb"II\*\0", rb"MM\0\*", rb"ICC_PROFILE\0", rb"acsp", rb"EXIF", rb"ICCP", rb"iCCP"):
        for found in list(re.finditer(mark, data))[:2]:
            at = found.end() + random.randrange(60)
            noise = random.randbytes(random.randint(1, 40))
            data[at : at + len(noise)] = noise


def pictures(lane: Lane) -> Iterator[Try]:
    """Spoilt files, a batch in a child; whatever ends the child is the fault of the file it was at."""
    names = sorted(sound := sound_files(lane))
    others = list(sound.values())
    for number in count():
        batch = []
        for _ in range(BATCH):
            name = lane.random.choice(names)
            data = bytearray(sound[name])
            for _ in range(lane.random.choice([1, 1, 2, 3])):
                if data:
                    lane.random.choice(KINDS)(lane.random, data, others)
            if lane.random.random() < 0.2:
                name = Path(name).stem + lane.random.choice(sorted(EXTENSIONS))
            batch.append((name, bytes(data)))
        yield from _batch(lane, batch, f"batch {number}")


def sound_files(lane: Lane) -> dict[str, bytes]:
    """Sound pictures, written in a child: encoders start threads, and a process that forks may have none."""
    folder = lane.fresh("sound")

    def write(say: Say) -> None:
        for name, data in seeds.sound().items():
            (folder / name).write_bytes(data)

    ended = in_child(write)
    assert not ended.how, ended.how
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def bombs(lane: Lane) -> Iterator[Try]:
    """Each bomb in a child of its own; and sound pictures, which must be read."""
    for name, data in sound_files(lane).items():
        yield from _batch(lane, [(name, data)], "sound", None if name.endswith("dng") else "")
    for name, make in seeds.bombs():
        file = lane.fresh("bomb") / name
        ended = in_child(lambda say, f=file, m=make: f.write_bytes(m()) and None, limit=300)  # type: ignore[misc]
        assert not ended.how, ended.how
        yield from _batch(lane, [(name, file.read_bytes())], "bomb")


def _batch(lane: Lane, batch: list[tuple[str, bytes]], what: str, expected: str | None = None) -> Iterator[Try]:
    ended = in_child(lambda say: read_all(batch, say), limit=SECONDS * 2 + 60)
    last = ended.last("begin", 0)
    outcomes = {line.split()[1]: line.split(maxsplit=2)[2:] for line in ended.said if line.startswith("end ")}
    for number, (name, data) in enumerate(batch[: last + 1]):
        kind = Path(name).suffix if what.startswith("batch") else what
        (wrong,) = outcomes.get(str(number), [_end(ended)]) or [""]
        if wrong.startswith("reason ") or wrong == "read":
            wrong = "" if expected is None or wrong == "read" else f"a sound picture was refused: {wrong}"
        if wrong:
            kept = Path(os.environ.get("CROW_KEEP", "/tmp")) / f"crow-torture-{zlib.crc32(data):08x}-{name}"
            kept.write_bytes(data)
            wrong += f" (kept as {kept})"
        yield Try(kind, wrong)


def _end(ended: Ended) -> str:
    return (
        f"a hang of more than {SECONDS} s" if "SIGALRM" in ended.how else ended.how or "the child ended without a word"
    )


def read_all(batch: list[tuple[str, bytes]], say: Say) -> None:
    """Read one after the other, under a clock and a measure of memory."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    for number, (name, data) in enumerate(batch):
        say(f"begin {number}")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts from now on
        signal.alarm(SECONDS)
        begun = time.monotonic()
        try:
            outcome = checked(name, data)
        except Exception as error:
            outcome = f"{type(error).__name__} instead of a reason: {' '.join(str(error).split())[:200]}"
        signal.alarm(0)
        if (peak := peak_of_memory()) > MEMORY:
            outcome = f"{peak} MB of memory after {time.monotonic() - begun:.1f} s, {outcome}"
        say(f"end {number} {outcome}")


def checked(name: str, data: bytes) -> str:
    """Read it: "read", or "reason ..." of a PictureError; anything else is wrong."""
    try:
        picture = prepare(data, VIEW, name=name)
    except PictureError as error:
        assert str(error).strip() and "\n" not in str(error), "a reason of no or several lines"
        assert error.reason, "no reason"
        return f"reason {error.reason}"
    assert picture.pixels.dtype == np.uint8 and picture.pixels.ndim == 3 and picture.pixels.size, "no pixels"
    return "read"


def peak_of_memory() -> int:
    """MB of this process since its peak was last forgotten."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def guided(lane: Lane) -> Iterator[Try]:
    """libFuzzer through atheris, which looks for files that reach new lines of the readers."""
    corpus = lane.fresh("corpus")
    for name, data in sound_files(lane).items():
        (corpus / name).write_bytes(data)
    while time.monotonic() < lane.until:
        left = max(2, int(min(60, lane.until - time.monotonic())))
        command = [sys.executable, "-m", "torture.guided", str(corpus), f"-max_total_time={left}", "-max_len=20000"]
        limits = [f"-timeout={SECONDS}", f"-rss_limit_mb={MEMORY}", f"-seed={lane.random.getrandbits(31) + 1}"]
        more = ["-print_final_stats=1", "-verbosity=0", f"-artifact_prefix={lane.place}/", "-close_fd_mask=1"]
        done = subprocess.run(
            [*command, *limits, *more], env=shim.plain_environment() | shim.QUIET | _path(), capture_output=True, text=True, errors="replace"
        )  # fmt: skip
        if "No module named 'atheris'" in done.stderr:
            yield Try("atheris is not installed here: not tried", count=0)
            return
        runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
        words = [x for x in done.stderr.splitlines() if "ERROR" in x or "Uncaught" in x or "Error:" in x]
        yield Try(
            "guided",
            " | ".join(words[:3]) or f"code {done.returncode}" if done.returncode else "",
            int(runs[1]) if runs else 1,
        )


def _path() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])}
