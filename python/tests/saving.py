"""Saves checkpoints without torch, for the tests."""

import base64
import secrets
import struct

from cairn import values
from cairn._reply import Reply
from cairn._saver import Saver


def join(saver):
    saver.ask("join", rank=0, size=1, address="", secret=None, job="").result(120)


def save(saver, folder, tensors, objects=None, staged=True, uploads=None, format="native", time="2026-01-02T03:04:05Z",
         **options):
    """Saves tensors, {name: (dtype, shape, bytes)}, and values. If staged is not set, the saver fetches the tensors.
    uploads receives the outcome of the upload."""
    names = list(tensors)
    items = [{"name": n, "dtype": tensors[n][0], "shape": list(tensors[n][1])} for n in names]
    for n, v in (objects or {}).items():
        codec, data = values.encode(v)
        items.append({"name": n, "codec": codec, "data": base64.b64encode(data).decode()})
    generation = saver.number()
    arena, held, units = saver.arena, [], []

    def fetch(body):
        data = tensors[names[body["item"]]][2][body["offset"]:body["offset"] + body["length"]]
        arena.back(body["at"], body["at"] + body["length"])
        arena.view[body["at"]:body["at"] + body["length"]] = data
        saver.send("fetched", fetch=body["fetch"])

    released = set()

    def on(kind, body):
        if kind == "fetch":
            fetch(body)
        if kind == "released":
            released.update(body["items"])
            if not staged and released >= set(range(len(names))):
                saver.send("staged", generation=generation, all=True)

    reply = Reply(on)
    if uploads is not None:
        uploads.append(saver.expect_upload(generation))
    saver.begin(("generation", generation), reply, "save", store=str(folder), format=format,
                save_id=secrets.token_hex(8), time=time, items=items, fits=staged, **options)
    if staged:
        for i, n in enumerate(names):
            data = tensors[n][2]
            at = arena.alloc(64 + len(data))
            held.append((at, 64 + len(data)))
            arena.view[at + 64:at + 64 + len(data)] = data
            arena.view[at:at + 8] = struct.pack("<Q", generation)
            units.append({"stamp": at, "items": [i], "at": [at + 64]})
        saver.send("staged", generation=generation, units=units)
        saver.send("staged", generation=generation, all=True)
    try:
        return reply.result(120)
    finally:
        for at, n in held:
            arena.view[at:at + 8] = bytes(8)
            arena.free(at, n)


def checkpoint(folder, tensors, objects=None, **options):
    """Saves a checkpoint by a saver process of its own."""
    need = sum(len(data) for _, _, data in tensors.values())
    s = Saver(ceiling=need * 2 + (4 << 20))
    try:
        join(s)
        return save(s, folder, tensors, objects, **options)
    finally:
        s.close()
