"""Interruptions of a training and of its saves."""

import os
import signal
import traceback


def killed(call):
    """Calls a function in a process of its own, which is killed."""
    pid = os.fork()
    if pid == 0:
        try:
            call()
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        raise AssertionError(f"the process ended with {status}, and was not killed")


def damage(path):
    """Changes a bit of the largest file of a checkpoint."""
    files = [os.path.join(at, name) for at, _, names in os.walk(path) for name in names]
    with open(max(files, key=os.path.getsize), "r+b") as f:
        f.seek(-1, os.SEEK_END)
        last = f.read(1)[0]
        f.seek(-1, os.SEEK_END)
        f.write(bytes([last ^ 1]))
