"""Files of torch.save that the saver process writes: they are those that torch.save writes."""

import collections
import contextlib
import os
import unittest
import zipfile

import torch
import torch.distributed as dist

from cairn import errors
from cairn.torch._files import PickledFile, async_save_files
from device import DEVICE, DTYPES, Case, join, spawn

Point = collections.namedtuple("Point", "x y")  # pickled by its name


def state():
    """Returns tensors of all dtypes, views of one storage, and objects."""
    flat = torch.arange(24, dtype=torch.float32, device=DEVICE)
    out = {
        "views": [flat[2:8], flat.view(4, 6).t(), flat[::3]],
        "parameter": torch.nn.Parameter(torch.ones(3, device=DEVICE)),
        "module": torch.nn.Linear(2, 3).to(DEVICE),
        "empty": torch.empty(0, 3, device=DEVICE),
        "storage": torch.ones(3, device=DEVICE).untyped_storage(),
        "objects": Point(1, {2: None}), "text": "x" * 5000, 7: object,
    }
    for name in DTYPES:
        with contextlib.suppress(AttributeError):
            out[name] = torch.arange(16, dtype=torch.uint8, device=DEVICE).view(torch.uint8).view(getattr(torch, name))
    return out


def records(path):
    """Returns the records of a file, without the one that identifies the file."""
    with zipfile.ZipFile(path) as z:
        return {i.filename: z.read(i) for i in z.infolist() if not i.filename.endswith("serialization_id")}


def save(folder, name, files):
    """Saves files and waits for them."""
    made = {file: PickledFile(file, v) for file, v in files.items()}
    async_save_files(lambda: made, folder, name, pointer="latest").result()


def of_ranks(rank, folder):
    """A rank saves a file, another one has none. One that fails fails on all, and the pointer stays."""
    join("gloo", folder, rank, 3)
    save(folder, "a", {f"rank{rank}.pt": {"rank": rank}} if rank < 2 else {})
    dist.barrier()
    for r in range(2):
        if torch.load(f"{folder}/a/rank{r}.pt") != {"rank": r}:
            raise AssertionError(r)

    def make():
        return {"x.pt": PickledFile("x.pt", (lambda: 0) if rank == 1 else 0)}

    try:
        async_save_files(make, folder, "b", pointer="latest").result()
        raise AssertionError("the save of a lambda does not fail")
    except errors.StateError:
        pass
    with open(f"{folder}/latest") as f:
        if os.path.exists(f"{folder}/b/x.pt") or f.read() != "a":
            raise AssertionError("the save that failed has left something")
    dist.destroy_process_group()


class Files(Case):
    def test_the_records_are_those_of_torch_save(self):
        want, v = self.path("state.pt"), state()
        torch.save(v, want)
        save(self.path("run"), "tag", {"state.pt": v, "plain.pt": {"w": torch.ones(3)}})
        got = self.path("run/tag/state.pt")
        self.assertEqual(records(got), records(want))
        self.assertEqual(set(torch.load(got, weights_only=False)), set(v))
        self.assertTrue(torch.load(self.path("run/tag/plain.pt"), weights_only=True)["w"].equal(torch.ones(3)))
        with open(self.path("run/latest")) as f:
            self.assertEqual(f.read(), "tag")

    def test_what_torch_save_refuses_is_refused(self):
        flat = torch.zeros(4, device=DEVICE)
        for v in (lambda: 0, [flat, flat.view(torch.int32)]):
            with self.assertRaises(errors.StateError):
                PickledFile("x.pt", v)

    def test_a_folder_that_the_pointer_names_is_not_replaced(self):
        save(self.path("run"), "one", {"x.pt": 1})
        with self.assertRaises(errors.ExistsError):
            save(self.path("run"), "one", {"x.pt": 2})
        save(self.path("run"), "two", {"x.pt": 3})
        save(self.path("run"), "one", {"x.pt": 4})
        self.assertEqual([torch.load(self.path(f"run/{n}/x.pt")) for n in ("one", "two")], [4, 3])

    def test_each_rank_has_files_of_its_own(self):
        spawn(3, of_ranks, self.path("."))


if __name__ == "__main__":
    unittest.main()
