"""Stands for a Python process that the fork server has forked: same input and output, same end.

Run as a file with `python -I -S`, so that it starts in some milliseconds; it may import nothing of Headrace. Where
there is no server, it becomes the process that was asked for.
"""

import array
import json
import os
import signal
import socket
import sys

SERVER = "HEADRACE_FORK_SERVER"
LENGTH_BYTES = 4


def ask(path: str, words: list[str]) -> "socket.socket | None":
    """The server's connection, with the order given; None where no server takes it."""
    server = socket.socket(socket.AF_UNIX)
    order = json.dumps({"words": words, "environment": dict(os.environ), "folder": os.getcwd()}).encode()
    try:
        server.connect(path)
        # Input, output and errors travel with the first bytes.
        handed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", (0, 1, 2)))]
        server.sendmsg([len(order).to_bytes(LENGTH_BYTES, "big")], handed)
        server.sendall(order)
    except OSError:
        server.close()
        return None
    return server


def read_number(server: socket.socket) -> "int | None":
    data = b""
    while len(data) < LENGTH_BYTES:
        try:
            got = server.recv(LENGTH_BYTES - len(data))
        except OSError:
            got = b""
        if not got:
            return None
        data += got
    return int.from_bytes(data, "big", signed=True)


def main() -> None:
    python, words = sys.argv[1], sys.argv[2:]
    server = ask(os.environ.get(SERVER, ""), words)
    pid = read_number(server) if server is not None else None
    if server is None or pid is None:
        os.execv(python, [python, *words])
    # Whoever ends this means the process that it stands for.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda caught, _: os.kill(pid, caught))
    # Held open here, the pipes would not end with the process that reads and writes them.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    code = read_number(server)
    os._exit(1 if code is None else code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
