"""Writes the files of this folder with a real PyTorch: python3 make.py FOLDER."""
import collections
import sys
import warnings

import torch

warnings.simplefilter("ignore")
out = sys.argv[1] + "/"

base = torch.arange(24, dtype=torch.float32)
views = {
    "whole": base.view(4, 6),
    "transposed": base.view(4, 6).t(),
    "part": base[5:9],
    "strided": base.view(4, 6)[1:3, 1::2],
    "repeated": base[2].expand(3, 2),
    "empty": base[24:],
    "none": torch.zeros(0, 3),
    "scalar": torch.tensor(7, dtype=torch.int64),
    "grad": torch.ones(2, requires_grad=True),
}
torch.save(views, out + "views.pt")
torch.save(views, out + "views_legacy.pt", _use_new_zipfile_serialization=False)

attr = torch.ones(2)
attr.note = "an attribute"
kinds = collections.OrderedDict(
    param=torch.nn.Parameter(torch.ones(3)),
    attr=attr,
    fp8=torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
    u16=torch.tensor([1, 65535], dtype=torch.uint16),
    conj=torch.tensor([1 + 2j]).conj(),
    sparse=torch.eye(2).to_sparse(),
    quantised=torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8),
    storage=torch.ones(2).untyped_storage(),
    tuple=(torch.ones(1), {"x": torch.zeros(2)}),
    step=3,
)
torch.save(kinds, out + "kinds.pt")
del kinds["storage"], kinds["fp8"], kinds["u16"]
torch.save(kinds, out + "kinds_legacy.pt", _use_new_zipfile_serialization=False)
torch.save(base[:2], out + "tensor.pt")

z = torch.tensor([[1 + 2j, -3 + 0j], [0 - 5j, 6 + 7j]])
lazy = {
    "conj": z.conj(),
    "conj128": z.to(torch.complex128).conj(),
    "conj_turned": z.conj().t(),
    "conj_repeated": z[1, 0].conj().expand(3),
    "neg": torch._neg_view(z),
    "neg_conj": torch._neg_view(z.conj()),
    "imag": z.clone().conj().imag,
    "imag_column": z.clone().conj()[:, 1].imag,
    "half": torch._neg_view(torch.tensor([1.0, -2.0], dtype=torch.float16)),
    "brain": torch._neg_view(torch.tensor([1.0, -2.0], dtype=torch.bfloat16)),
    "int": torch._neg_view(torch.tensor([1, -2, 0], dtype=torch.int16)),
    "byte": torch._neg_view(torch.tensor([1, 2, 0], dtype=torch.uint8)),
    "param": torch.nn.Parameter(z.conj()),
    "inside": (z.conj(), 1),
}
torch.save(lazy, out + "lazy.pt")
torch.save(lazy, out + "lazy_legacy.pt", _use_new_zipfile_serialization=False)
torch.save((torch.ones(1), [1, 2]), out + "tuple.pt")
torch.save(z.conj(), out + "conj.pt")
torch.save({"x": z.conj()}, out + "conj_dict.pt")
