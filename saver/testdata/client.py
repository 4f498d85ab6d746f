"""A trainer in Python, with nothing but the standard library: it follows docs/saver.md.

client.py SAVER FOLDER saves the numbers 0 to 999 as a tensor of 64-bit integers, and a
value, through a saver process. It loads them in two boxes, and compares. The log of the
saver is appended to the file FOLDER.log.
"""

import base64
import fcntl
import json
import mmap
import os
import socket
import struct
import subprocess
import sys

SIZE = 1 << 20
F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2


class Saver:
    def __init__(self, program, log):
        self.arena = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.arena, SIZE)
        fcntl.fcntl(self.arena, F_ADD_SEALS, F_SEAL_SHRINK)
        os.posix_fallocate(self.arena, 0, SIZE)
        self.mem = mmap.mmap(self.arena, SIZE)
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(120)
        fds = (theirs.fileno(), self.arena)
        with open(log, "ab") as stderr:
            self.process = subprocess.Popen(
                [program], stderr=stderr, pass_fds=fds, env={**os.environ, "CAIRN_SAVER": "%d,%d" % fds}, start_new_session=True)
        theirs.close()

    def send(self, kind, **body):
        text = json.dumps({"type": kind, "body": body}).encode()
        self.sock.sendall(struct.pack("<I", len(text)) + text)

    def read(self, n):
        out = b""
        while len(out) < n:
            part = self.sock.recv(n - len(out))
            if not part:
                raise EOFError("the saver has ended")
            out += part
        return out

    def receive(self, *kinds):
        """Returns the next message of these types. Progress is left out."""
        while True:
            (n,) = struct.unpack("<I", self.read(4))
            message = json.loads(self.read(n))
            kind, body = message["type"], message["body"]
            if kind in kinds:
                return kind, body
            if kind in ("failed", "refused"):
                raise RuntimeError(body["error"]["text"])


def window(size):
    window = min(max(size // 8, 4096), 67108864) // 4096 * 4096
    return size - window, min(max(window // 8, 4096), 1048576) // 4096 * 4096


def save(s, folder, content):
    generation, half = 1, len(content) // 2
    shape = [500]
    s.send("save", generation=generation, store=folder, format="native", save_id="python-1", time="2026-01-02T03:04:05Z", step=7,
           items=[{"name": "a", "dtype": "int64", "shape": shape}, {"name": "b", "dtype": "int64", "shape": shape},
                  {"name": "note", "codec": "json", "data": base64.b64encode(b'"from Python"').decode()}])
    # The first tensor is fetched, the second is staged.
    start, block = window(SIZE)
    done = 0
    while done < half:
        _, f = s.receive("fetch")
        source = content[:half] if f["item"] == 0 else content[half:]
        if not (start <= f["at"] <= SIZE - f["length"] and f["length"] <= block):
            raise RuntimeError("a fetch outside of the window: %r" % f)
        s.mem[f["at"]:f["at"] + f["length"]] = source[f["offset"]:f["offset"] + f["length"]]
        s.send("fetched", fetch=f["fetch"])
        done += f["length"] if f["item"] == 0 else 0
    s.mem[64:64 + half] = content[half:]
    s.mem[0:8] = struct.pack("<Q", generation)
    s.send("staged", generation=generation, units=[{"stamp": 0, "items": [1], "at": [64]}])
    released = set()
    while 0 not in released:
        kind, body = s.receive("released", "fetch")
        if kind == "released":
            released.update(body["items"])
            continue
        s.mem[body["at"]:body["at"] + body["length"]] = content[half:][body["offset"]:body["offset"] + body["length"]]
        s.send("fetched", fetch=body["fetch"])
    s.send("staged", generation=generation, all=True)
    while True:
        kind, body = s.receive("saved", "fetch")
        if kind == "saved":
            return body["report"]
        s.mem[body["at"]:body["at"] + body["length"]] = content[half:][body["offset"]:body["offset"] + body["length"]]
        s.send("fetched", fetch=body["fetch"])


def load(s, folder, content):
    at, half = 8192, len(content) // 2
    s.mem[at:at + 8192] = bytes(8192)
    s.send("load", load=1, store=folder,
           items=[{"name": "b", "dtype": "int64", "shape": [500], "at": at},
                  {"name": "a", "dtype": "int64", "shape": [500], "offsets": [100], "sizes": [300], "at": at + 4096},
                  {"name": "note"}])
    pieces = {}
    while len(pieces) < 3:
        _, p = s.receive("piece")
        pieces[p["item"]] = p
    _, loaded = s.receive("loaded")
    if s.mem[at:at + half] != content[half:] or s.mem[at + 4096:at + 4096 + 2400] != content[800:3200]:
        raise RuntimeError("other elements were loaded")
    if base64.b64decode(pieces[2]["data"]) != b'"from Python"':
        raise RuntimeError("another value was loaded: %r" % pieces[2])
    return loaded["report"]


def main(program, folder):
    s = Saver(program, folder + ".log")
    s.send("hello", version=1)
    s.receive("ready")
    s.send("join", size=1)
    s.receive("joined")
    content = struct.pack("<1000q", *range(1000))
    saved = save(s, folder, content)
    loaded = load(s, folder, content)
    if saved["step"] != 7 or loaded["save_id"] != saved["save_id"]:
        raise RuntimeError("the reports are %r and %r" % (saved, loaded))
    s.sock.close()
    status = s.process.wait(120)
    if status != 0:
        raise RuntimeError("the saver has ended with status %d" % status)
    print("saved and loaded")


main(*sys.argv[1:])
