"""A network of this process' own, of which loopback is all: what it starts can listen nowhere else, and nobody else can reach it.

Milvus binds every interface, whatever its settings named `ip` say, and Ray the address of the machine.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

NEW_USER, NEW_NET = 0x10000000, 0x40000000  # of unshare(2), which Python has from 3.12 on
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1  # of netdevice(7)


def leave_the_network() -> str:
    """From now on this thread, and whatever comes of it, has loopback alone; the reason where that is not allowed."""
    tried = subprocess.run([sys.executable, __file__], capture_output=True, text=True)  # half of it cannot be undone
    if tried.returncode:
        return tried.stderr.strip().splitlines()[-1]
    _leave()
    return ""


def _leave() -> None:
    libc, users = ctypes.CDLL(None, use_errno=True), {"uid": os.getuid(), "gid": os.getgid()}
    if libc.unshare(NEW_NET) != 0:
        if libc.unshare(NEW_USER | NEW_NET) != 0:  # what anybody may, where the system lets them
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        Path("/proc/self/setgroups").write_text("deny")
        for kind, number in users.items():
            Path(f"/proc/self/{kind}_map").write_text(f"{number} {number} 1")
    _up()


def _up() -> None:
    """Switch loopback on: a new network has it switched off."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(any_socket, GET_FLAGS, request), 16)
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", flags | UP))


if __name__ == "__main__":
    _leave()
