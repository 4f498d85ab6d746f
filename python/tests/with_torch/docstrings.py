"""Runs the examples in docstrings, for the tests."""

import doctest
import inspect


def failures(module, names=None):
    """Runs the examples of a module's docstrings with some names, and returns the report of those that fail."""
    said = []
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder().find(module, globs={**vars(module), **(names or {})}):
        runner.run(test, out=said.append)
    return "".join(said)


def without(package):
    """Returns the public names of a package that have no example, except for errors and warnings."""
    public = {name: getattr(package, name) for name in package.__all__}
    return [name for name, v in public.items()
            if not (inspect.isclass(v) and issubclass(v, Exception)) and ">>>" not in (v.__doc__ or "")]
