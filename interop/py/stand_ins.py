"""Stand-ins for packages that frameworks import, and that saving and loading do not use."""

import importlib.abc
import importlib.machinery
import sys
import types


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
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(f"{one}.") for one in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def use(*names):
    """Has imports find stand-ins for modules, and for what is below them."""
    sys.meta_path.insert(0, Finder(names))
