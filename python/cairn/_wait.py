"""Waiting for a save in another process, which sees no futures. It imports nothing: such a process has little else."""

import os
import time


def until_gone(path: str, of: int) -> None:
    """Waits until a file is gone, or the process that will remove it."""
    parent = os.getppid()  # a dead process is there until it is waited for, but is nobody's parent
    while os.path.exists(path) and os.getppid() == parent:
        try:
            os.kill(of, 0)
        except ProcessLookupError:
            return
        except PermissionError:
            pass
        time.sleep(0.05)
