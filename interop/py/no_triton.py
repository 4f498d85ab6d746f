"""Lets modules that import triton be imported without it. Its kernels are not called."""

import sys
import types

import functorch.compile  # noqa: F401 -- it must not see the stand-in for triton
import torch._dynamo
import torch._inductor.compile_fx  # noqa: F401


class Triton(types.ModuleType):
    """A stand-in for triton."""

    __version__ = "3.0.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **_: args[0] if args and callable(args[0]) else lambda function: function


sys.modules["triton"] = Triton("triton")
sys.modules["triton.language"] = sys.modules["triton"].language = Triton("triton.language")
