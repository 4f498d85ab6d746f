"""When Run.save_if_due saves: the same decision on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable

from cairn.runs import Due
from cairn.torch._job import Caught, agree, broadcast

_MOST = 100  # calls without a question to rank 0: they may take much longer than the calls before


def is_due(due: Due, step: int) -> bool:
    """Reports whether a save of a step is due. All ranks call it."""
    before = step - 1 if due.last is None else due.last
    due.last = step
    by_steps = any(step // n > before // n for n in due.steps)  # the same on all ranks
    by_time = due.period is not None and _by_time(due, step)

    if by_steps or by_time:
        due.saved = time.monotonic()
    return by_steps or by_time


def all_agree(keep: Callable[[], bool] | None) -> bool:
    """Reports whether a function returns True on all ranks, or is None. All ranks call it."""
    if keep is None:
        return True
    refused = True
    with Caught() as caught:
        refused = not keep()
    return not agree("keep", caught.error, lacks=refused)


def _by_time(due: Due, step: int) -> bool:
    """Reports whether the time is over, as rank 0 says. Between two questions, all ranks count the same calls."""
    due.since += 1
    if due.skip > 0:
        due.skip -= 1
        return False
    over, due.skip = broadcast("due", lambda: _ask(due), f"save if {due.text}, step {step}")
    return over


def _ask(due: Due) -> tuple[bool, int]:
    """Returns on rank 0 whether the time is over, and how many calls need not ask: half of those that fit into it."""
    assert due.period is not None
    now = time.monotonic()
    first = due.saved is None
    if due.saved is None:
        due.saved = due.asked = now
    left = due.saved + due.period - now
    each = (now - due.asked) / max(due.since, 1)
    due.asked, due.since = now, 0
    if first or left <= 0:
        return left <= 0, 0
    return False, min(int(left / max(each, 1e-6) / 2), _MOST)
