"""The process that is Sail: an engine for one client, in a network that has nobody else.

Sail asks nobody for a token, so its port is opened where no other user can reach it, and the way
in is a socket in a folder of the client's own. It ends with the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys

_NEW_USER = 0x10000000
_NEW_NETWORK = 0x40000000
_GET_FLAGS = 0x8913
_SET_FLAGS = 0x8914
_UP = 0x1
_PIECE = 1 << 16


def be_alone() -> None:
    """Move to a network of this process's own, with nothing but a loopback; else ``OSError``."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        raise OSError("this system has no private networks")
    if libc.unshare(_NEW_NETWORK) != 0:
        if libc.unshare(_NEW_USER | _NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), "a private network was refused")
        _write("setgroups", "deny")
        _write("uid_map", f"{user} {user} 1")
        _write("gid_map", f"{group} {group} 1")
    _raise_loopback()


def _write(name: str, text: str) -> None:
    with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
        file.write(text)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack("16xH14x", fcntl.ioctl(control, _GET_FLAGS, asked))
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags | _UP))


async def relay(path: str, port: int) -> None:
    """Pass on what comes in at a socket of the file system, until the client hangs up."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pass(reader, back), _pass(there, writer))

    server = await asyncio.start_unix_server(accept, path)
    async with server:
        _say("ready")
        # Nothing is ever sent this way: what comes is its end.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
    writer.close()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Serve one client at the socket that the command line names."""
    try:
        be_alone()
    except OSError as error:
        _say(f"no private network: {error}")
        os._exit(1)
    from pysail.spark import SparkConnectServer

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    asyncio.run(relay(sys.argv[1], server.listening_address[1]))
    # Its work is for a client that is gone.
    os._exit(0)


if __name__ == "__main__":
    main()
