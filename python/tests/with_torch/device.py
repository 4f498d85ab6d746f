"""Shared by the tests: the device, states, comparisons and ranks.

"python3 device.py" prints the name of the GPU, or fails with the reason why there is none. "make gpu"
runs the tests on a GPU, interop on the CPU. By hand they run on a GPU if there is one:

    CAIRN_BINARY=… PYTHONPATH=python python3 -m unittest discover -s python/tests/with_torch
"""

import datetime
import faulthandler
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
import warnings

LIMIT = 300  # seconds that a test may take

try:
    import torch
except ImportError as e:
    if __name__ == "__main__":
        sys.exit(f"no torch: {e}")
    raise

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16",
          "float32", "float64",
          "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
          "float8_e8m0fnu"]

# The environment of a program that imports the same modules as this one.
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), *sys.path])}

warnings.simplefilter("ignore")


def slow(test):
    """Marks a test that takes long on a CPU: "make test" runs it with DEEP=1, "make interop" and "make gpu" always."""
    test.slow = True
    return test


class Case(unittest.TestCase):
    """A test with a folder of its own. Its saver process ends with it, and it does not hang."""

    def setUp(self):
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)
        self.folder = tempfile.mkdtemp(prefix="cairn-gpu-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        import cairn.torch

        self.addCleanup(cairn.torch.close)

    def path(self, name="checkpoint"):
        return os.path.join(self.folder, name)

    def environment(self, **variables):
        """Sets variables for this test. The job that begins after this has them."""
        old = {k: os.environ.get(k) for k in variables}
        os.environ.update(variables)

        def reset():
            for k, v in old.items():
                if v is None:
                    del os.environ[k]
                else:
                    os.environ[k] = v

        self.addCleanup(reset)

    def round_trip(self, state):
        """Saves a state and loads it into zeros."""
        import cairn.torch

        cairn.torch.save(state, self.path())
        got = blank(state)
        cairn.torch.load(got, self.path())
        self.assert_same(state, got)
        return got

    def assert_same(self, want, got, at="state"):
        """Compares two states bit by bit."""
        if difference := differs(want, got, at):
            self.fail(difference)


def differs(want, got, at="state"):
    """Returns the first difference of two states, or an empty text."""
    if isinstance(want, dict):
        if list(want) != list(got):
            return f"{at} has {list(got)}; want {list(want)}"
        return next((d for k in want if (d := differs(want[k], got[k], f"{at}.{k}"))), "")
    if isinstance(want, (list, tuple)):
        if len(want) != len(got):
            return f"{at} has {len(got)} entries; want {len(want)}"
        return next((d for i, x in enumerate(want) if (d := differs(x, got[i], f"{at}.{i}"))), "")
    if not isinstance(want, torch.Tensor):
        return "" if want == got else f"{at} = {got!r}; want {want!r}"
    want, got = local(want), local(got)
    if (want.dtype, want.shape) != (got.dtype, got.shape):
        return f"{at} = {got.dtype}{list(got.shape)}; want {want.dtype}{list(want.shape)}"
    a, b = bits(want), bits(got)
    if torch.equal(a, b):
        return ""
    wrong = (a != b).nonzero()
    return f"{at}: {len(wrong)} of {len(a)} bytes differ, the first at {wrong[0].item()}"


def local(t):
    return t.to_local() if hasattr(t, "to_local") else t


def bits(t):
    """Returns the bytes of a tensor, in host memory."""
    t = t.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return t.reshape(-1).view(torch.uint8) if t.numel() else torch.empty(0, dtype=torch.uint8)


def noise(shape, dtype="float32", device=DEVICE, seed=0):
    """Returns a tensor of random bits."""
    dtype = getattr(torch, dtype)
    size = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
    g = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8, generator=g)
    return raw.view(dtype).reshape(shape).to(device)


def killed_state():
    """Returns the state of a trainer that is killed."""
    return {"large": noise((64 << 20,), "uint8", seed=1), "small": noise((5, 7), seed=2),
            "cpu": noise((1 << 20,), device="cpu", seed=3), "step": 7}


def copy_of(v):
    """Returns a state with copies of all tensors."""
    if isinstance(v, dict):
        return {k: copy_of(x) for k, x in v.items()}
    if isinstance(v, list):
        return [copy_of(x) for x in v]
    return v.detach().clone() if isinstance(v, torch.Tensor) else v


def blank(v):
    """Returns a state of the same tensors, filled with zeros."""
    if isinstance(v, dict):
        return {k: blank(x) for k, x in v.items()}
    if isinstance(v, list):
        return [blank(x) for x in v]
    if not isinstance(v, torch.Tensor):
        return None
    if not v.is_contiguous():
        return torch.zeros_like(v)
    raw = torch.zeros(v.numel() * v.element_size(), dtype=torch.uint8, device=v.device)  # not every dtype can be filled
    return raw.view(v.dtype).reshape(v.shape).requires_grad_(v.requires_grad)


def busy(rounds=60):
    """Gives the current stream work that takes some time, and returns its result."""
    n = 4096 if CUDA else 64
    x = torch.full((n, n), 1 / n, device=DEVICE)
    for _ in range(rounds):
        x = x @ x
    return x


def on_stream(other):
    return torch.cuda.stream(torch.cuda.Stream() if CUDA and other else None)


def spawn(count, call, *args, timeout=LIMIT):
    """Runs call(rank, *args) in processes of their own, and raises the error of any of them.

    They are forked if they can be, because a new process takes seconds to import PyTorch.
    """
    import torch.multiprocessing as multiprocessing

    how = "fork" if can_fork() else "spawn"
    faulthandler.cancel_dump_traceback_later()  # a forked process would wait for the thread of this
    ranks = multiprocessing.start_processes(_rank, (count, call, args), count, join=False, start_method=how)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    end = time.monotonic() + timeout
    try:
        while not ranks.join(5):
            if time.monotonic() > end:
                raise TimeoutError(f"the ranks have not ended after {timeout} seconds")
    finally:
        for p in ranks.processes:
            if p.is_alive():
                p.kill()
            p.join(10)


def _rank(rank, count, call, args):
    faulthandler.dump_traceback_later(LIMIT - 20, exit=True)
    import cairn.torch

    try:
        call(rank, *args)
    finally:
        cairn.torch.close()


def can_fork():
    """Tells whether PyTorch works in a process that is forked: not with a GPU, nor after it has used threads."""
    return not CUDA and torch.get_num_threads() == 1


def start(code, *args, **options):
    """Starts a program of Python, with options of Popen. It is forked if it can be; then it has no atexit."""
    if not can_fork():
        return subprocess.Popen([sys.executable, "-c", code, *args], env=ENV, **options)
    sys.stdout.flush()
    sys.stderr.flush()
    return subprocess.Popen([sys.executable], restore_signals=False, preexec_fn=lambda: _program(code, args), **options)


def _program(code, args):
    """Runs a program in a process that Popen has forked, instead of an exec."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # Popen waits until its pipe is closed
    sys.argv, status = ["-c", *args], 1
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def join(backend, folder, rank, size):
    """Makes this process a rank of a job."""
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(backend, init_method=f"file://{os.path.join(folder, 'meet')}", rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=120))


def main():
    if not CUDA:
        sys.exit(f"PyTorch {torch.__version__} has no GPU here")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    print(f"PyTorch {torch.__version__}, Python {sys.version.split()[0]}, {', '.join(names)}")


if __name__ == "__main__":
    main()
