"""Runs the program cairn, which this package contains, with the arguments of the command: docs/cli.md."""

from __future__ import annotations

import os
import sys

from cairn import _saver, errors


def main() -> str:
    """Runs the program in place of this process. It returns only if there is no program."""
    try:
        program = _saver.binary()
    except errors.SaverError as e:
        return f"cairn: {e}"
    if os.path.exists(sys.argv[0]) and os.path.samefile(program, sys.argv[0]):
        return f"cairn: CAIRN_BINARY is {program!r}, which is this script: name the program itself"
    os.execv(program, ["cairn", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
