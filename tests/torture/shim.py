"""The layer under the files: compiled here, loaded before everything else, armed in processes that are to suffer."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
NOTHING, COUNT, KILL_BEFORE, KILL_AFTER, KILL_HALF, FULL_FROM, BROKEN_FROM = range(7)
QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # a process that forks has one


def begin_again(place: Path) -> None:
    """Start this program anew under the layer; returns where that was done, or where there is no compiler."""
    if os.environ.get("CROW_TORTURE"):
        return
    compiler, more = shutil.which("cc") or shutil.which("gcc"), {}
    if compiler and sys.platform == "linux":
        built = place / "shim.so"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(built), str(SOURCE), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        more = {"LD_PRELOAD": str(built)}
    environment = os.environ | QUIET | more | {"CROW_TORTURE": str(place), "TMPDIR": str(place)}
    os.execve(sys.executable, [sys.executable, "-m", "torture", *sys.argv[1:]], environment)


def is_there() -> bool:
    """Whether this process runs under the layer."""
    return hasattr(ctypes.CDLL(None), "torture_arm")


def arm(folder: Path, how: int, when: int = 0, journal: int = -1) -> None:
    """From now on watch the files below a folder, and do `how` at the operation number `when`."""
    ctypes.CDLL(None).torture_arm(os.fsencode(folder), how, ctypes.c_long(when), journal)


def disarm() -> None:
    """Let the files alone again."""
    arm(Path("/"), NOTHING)


def seen() -> int:
    """How many operations there were since the layer was armed."""
    count = ctypes.CDLL(None).torture_seen
    count.restype = ctypes.c_long
    return int(count())


def note(text: str) -> None:
    """Write an acknowledgement between the operations of the journal."""
    ctypes.CDLL(None).torture_note(text.encode())


def shift_clock(seconds: int) -> None:
    """Let this process believe that it is so much later."""
    ctypes.CDLL(None).torture_shift_clock(ctypes.c_long(seconds))


def plain_environment() -> dict[str, str]:
    """The environment for programs that run without the layer, with as many threads as they like."""
    dropped = {"LD_PRELOAD", "CROW_TORTURE", *QUIET}
    return {name: value for name, value in os.environ.items() if name not in dropped}
