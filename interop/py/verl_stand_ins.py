"""Stand-ins for packages that verl and SkyRL import, and that saving and loading do not use."""

import importlib.abc
import importlib.machinery
import sys
import types

PACKAGES = {"ray", "tensordict", "datasets", "PIL", "pandas", "orjson"}


class StandIn(types.ModuleType):
    """A module whose classes do nothing."""

    __version__ = "0.10.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": lambda self, *args, **more: None, "__class_getitem__": lambda key: None})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for packages that are not installed: it is asked last."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in PACKAGES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())
