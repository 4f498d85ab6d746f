"""Records what PyTorch's casts to the float8 types return.

python3 float8.py > float8-torch-VERSION.txt

A "steps" line has the result for every float32: at each BITS:CODE, counting the bits of the float32 up from zero, the
result changes to CODE. A "sum" line has the first half of the SHA-256 of the results for all inputs of another type, or
for those that inputs() names.
"""
import hashlib
import torch

FLOAT8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
STEP = 1 << 24


def cast(t, name):
    return t.to(getattr(torch, name)).view(torch.uint8)


def signed(t, bits):
    return torch.where(t >= 1 << (bits - 1), t - (1 << bits), t)


def steps(name):
    last, out = -1, []
    for start in range(0, 1 << 32, STEP):
        bits = torch.arange(start, start + STEP)
        codes = cast(signed(bits, 32).to(torch.int32).view(torch.float32), name).to(torch.int16)
        before = torch.cat([torch.tensor([last], dtype=torch.int16), codes[:-1]])
        for i in torch.nonzero(codes != before).flatten().tolist():
            out.append("%08x:%02x" % (start + i, codes[i]))
        last = int(codes[-1])
    return out


def inputs():
    """Numbers that float32 holds exactly: from the others PyTorch rounds twice, and cairn once."""
    halves = signed(torch.arange(1 << 16), 16).to(torch.int16)
    yield "float16", halves.view(torch.float16)
    yield "bfloat16", halves.view(torch.bfloat16)
    yield "float64", halves.view(torch.bfloat16).to(torch.float64)
    for name in ["int8", "int16", "int32", "int64"]:
        bits = torch.iinfo(getattr(torch, name)).bits
        # The numbers of up to 8 bits, followed by 0 to bits-9 zeros, and their negatives.
        shifts = torch.arange(bits - 8 + (bits == 8))
        t = (torch.arange(128)[:, None] << shifts[None, :]).flatten()
        yield name, torch.cat([t, -t]).to(getattr(torch, name))
    yield "uint8", torch.arange(256).to(torch.uint8)
    yield "bool", torch.tensor([False, True])
    for name in FLOAT8:
        yield name, torch.arange(256).to(torch.uint8).view(getattr(torch, name))


print("# PyTorch", torch.__version__.split("+")[0])
for to in FLOAT8:
    print("steps", to, *steps(to))
for source, t in inputs():
    for to in FLOAT8:
        if source != to:
            print("sum", source, to, hashlib.sha256(cast(t, to).numpy().tobytes()).hexdigest()[:32])
