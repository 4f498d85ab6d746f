"""Files of torch.save that the saver processes write, for frameworks whose checkpoints are such files."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch

from cairn import errors
from cairn._request import SaveRequest
from cairn.torch._handle import Handle
from cairn.torch._remembered import describe
from cairn.torch._save import begin

_PROTOCOL = 2  # of the pickles of torch.save


class PickledFile:
    """An object, pickled as torch.save pickles it. The storages of its tensors are still those of the tensors.

    StateError: the object cannot be pickled.
    """

    def __init__(self, name: str, obj: Any) -> None:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer)
        try:
            pickler.dump(obj)
        except Exception as e:  # of any class
            raise errors.StateError(f"what is saved as {name} cannot be pickled: {e}", ("plan.state",)) from e
        self._pickle, self._storages = buffer.getvalue(), pickler.storages

    def parts(self) -> dict[str, torch.Tensor]:
        """Returns the parts of the file: the pickle and the storages, as bytes."""
        out = {"pickle": torch.frombuffer(bytearray(self._pickle), dtype=torch.uint8)}
        for key, storage in self._storages.values():
            out[key] = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return out


class _Pickler(pickle.Pickler):
    """Pickles as torch.save does: a storage is a reference to another part of the file."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=_PROTOCOL)
        self.storages: dict[int, tuple[str, torch.UntypedStorage]] = {}  # by what tells them apart
        self._dtypes: dict[int, torch.dtype] = {}  # by address

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        kind: Any
        if isinstance(obj, torch.storage.TypedStorage):
            storage, size, dtype = obj._untyped_storage, obj._size(), obj.dtype
            kind = getattr(torch, obj._pickle_storage_type())
        elif isinstance(obj, torch.UntypedStorage):
            storage, size, dtype, kind = obj, obj.nbytes(), torch.uint8, torch.UntypedStorage
        else:
            return None
        if (at := storage.data_ptr()) and self._dtypes.setdefault(at, dtype) != dtype:
            raise pickle.PicklingError("tensors of different dtypes share memory, which torch.load does not make again")
        key, _ = self.storages.setdefault(storage._cdata, (str(len(self.storages)), storage))
        return "storage", kind, key, torch.serialization.location_tag(storage), size


def async_save_files(make: Callable[[], Mapping[str, PickledFile]], path: str | os.PathLike[str], name: str, *,
                     pointer: str | None) -> Handle:
    """Saves files of torch.save in the folder name below path, in the background. All ranks call it.

    make returns the files of this rank, by name. Other ranks have other files, or none. An error that it raises is
    raised on all ranks. The file pointer, which is beside the folder, gets the name of the folder when the files of all
    ranks are complete and durable. A folder that it names already is not written to: ExistsError.
    """
    options = {"folder": name} | ({} if pointer is None else {"pointer": pointer})
    request = SaveRequest(path=path, format="torch", format_options=options, overwrite=True)
    return begin(request, lambda j: describe(j, {file: p.parts() for file, p in make().items()}, False))
