"""The job of examples/train as a PyTorch user writes it: the same model, batches and optimizer."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

SYMBOLS = 128


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        x = x + self.out(self.attention(self.norm1(x)))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    def attention(self, x):
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self, layers, heads, width, time):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(SYMBOLS, width), nn.Embedding(time, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, SYMBOLS, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Job:
    """A rank that trains. Several ranks shard the model by FSDP2 and share each batch."""

    def __init__(self, text, layers, heads, width, time, batch, rate):
        self.text, self.time, self.batch = tokens(text), time, batch
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        torch.manual_seed(3)
        self.net = Model(layers, heads, width, time)
        for p in self.net.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        if self.ranks > 1:
            self.shard()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=rate, weight_decay=0.01)

    def shard(self):
        mesh = init_device_mesh("cpu", (self.ranks,))
        for layer in [*self.net.blocks, self.net]:
            fully_shard(layer, mesh=mesh)

    def step(self, number):
        """Trains with a batch and returns the mean loss of all ranks."""
        x, y = self.sequences(number)
        loss = functional.cross_entropy(self.net(x).flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad()
        mean = loss.detach() / self.ranks
        if self.ranks > 1:
            dist.all_reduce(mean)
        return mean.item()

    def sequences(self, step):
        """Returns this rank's sequences of a step, and the tokens that follow each of theirs."""
        count = self.batch // self.ranks
        first = step * self.batch + self.rank * count
        places = [mix(first + i) % (len(self.text) - self.time) for i in range(count)]
        rows = torch.stack([self.text[at : at + self.time + 1] for at in places])
        return rows[:, :-1], rows[:, 1:]

    def save(self, path, step):
        weights, moments = get_state_dict(self.net, self.opt)
        dcp.save({"model": weights, "optim": moments, "step": step}, checkpoint_id=path)

    def load(self, path):
        """Loads a checkpoint and returns its step."""
        weights, moments = get_state_dict(self.net, self.opt)
        # The job in Go saves no param_groups: like this one, it has the learning rate from its arguments.
        state = {"model": weights, "optim": {"state": moments["state"]}, "step": 0}
        dcp.load(state, checkpoint_id=path)
        set_state_dict(self.net, self.opt, model_state_dict=weights, optim_state_dict=moments)
        return state["step"]


def tokens(path):
    with open(path, encoding="utf-8", newline="") as f:
        return torch.tensor([ord(c) if ord(c) < SYMBOLS else ord("?") for c in f.read()])


def mix(n):
    """Returns the number that splitmix64 makes of n."""
    n = (n + 0x9E3779B97F4A7C15) % 2**64
    n = (n ^ n >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    n = (n ^ n >> 27) * 0x94D049BB133111EB % 2**64
    return n ^ n >> 31


def run(until, load=None, save=None, at=None, **of):
    """Trains up to a step, from a checkpoint if one is named, and saves after step at. Returns the losses by step."""
    job = Job(**of)
    first = job.load(load) + 1 if load else 0
    losses = {}
    for step in range(first, until):
        losses[step] = job.step(step)
        if step == at:
            job.save(save, step)
    return losses
