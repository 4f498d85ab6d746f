"""Writes the files of this folder with a real PyTorch: python3 make.py FOLDER."""
import sys

import torch

out = sys.argv[1] + "/"
nan = float("nan")

# A module, saved whole.
linear = torch.nn.Linear(2, 2, bias=False)
linear.weight.data = torch.tensor([[1.0, nan], [3.0, 4.0]])
torch.save(linear, out + "linear.pt")


class Net(torch.nn.Module):
    """Has submodules, a buffer, an attribute that is a tensor, and tied weights."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(3, 2)
        self.fc = torch.nn.Linear(2, 3)
        self.fc.weight = self.embed.weight
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))
        self.scale = torch.tensor([0.5])


class Trainer:
    """An object that is no module."""

    def __init__(self):
        self.model = Net()
        self.state = {"step": 7, "ema": [torch.zeros(2), (torch.ones(1),)]}


class Slots:
    """An object whose class has slots."""

    __slots__ = ("w",)

    def __init__(self):
        self.w = torch.tensor([1.0, nan])


class Plain(torch.nn.Module):
    """A module whose file has no source but this: the old stream keeps that of each class."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, nan]))
        self.inner = None


plain = Plain()
plain.inner = Plain()
torch.save(plain, out + "module_legacy.pt", _use_new_zipfile_serialization=False)

torch.manual_seed(0)
trainer = Trainer()
torch.save(trainer, out + "trainer.pt")
torch.save({"step": 1, "slots": Slots()}, out + "slots.pt")
torch.save({"step": 1, "slots": Slots()}, out + "slots_legacy.pt", _use_new_zipfile_serialization=False)

# Dicts with keys that are neither strings nor integers.
odd = {None: torch.tensor([nan]), (1, "a"): torch.ones(1), True: torch.zeros(1), 1.5: torch.full((1,), 2.0)}
torch.save(odd, out + "odd.pt")
torch.save({"step": 3, "odd": odd}, out + "odd_inside.pt")

# Weights that share a storage: the same tensor, and two views of other parts of one storage.
w = torch.arange(6.0).view(3, 2)
torch.save({"embed": w, "head": w.detach(), "turned": w.view(2, 3).t(), "row": w[1], "copy": w.clone()}, out + "tied.pt")

# A module at two places.
linear = torch.nn.Linear(2, 2)
shared = torch.nn.ModuleDict({"ab": linear, "c": torch.nn.ModuleList([linear, torch.nn.Embedding(3, 2)])})
torch.save(shared, out + "shared.pt")
