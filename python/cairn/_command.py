"""Commands of the program cairn that answer with JSON."""

from __future__ import annotations

import json
import subprocess
import warnings
from collections.abc import Sequence

from cairn import _saver, errors
from cairn._messages import Answer

# Kinds of errors that have no code.
_KINDS: dict[str, type[errors.CairnError]] = {
    "incomplete": errors.UnderWayError, "corrupt": errors.CorruptError, "version": errors.VersionError,
    "usage": errors.OptionsError, "uncertain": errors.UncertainError, "not-found": errors.NotFoundError,
    "mismatch": errors.MismatchError,
}


def run(command: str, flags: Sequence[str], *args: str) -> Answer:
    """Runs a command and returns its answer, or raises its error. Lines that it prints besides are warnings."""
    program = _saver.binary()
    done = subprocess.run([program, command, "--json", *flags, "--", *args], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, errors="replace")
    # The object of an error is the last thing on stderr, and its first line is a brace alone.
    before, _, failure = f"\n{done.stderr}".rpartition("\n{\n") if done.returncode else (done.stderr, "", "")
    try:
        answer: Answer = json.loads("{" + failure if done.returncode else done.stdout)
    except ValueError:  # the program was killed, or is another one
        raise errors.CairnError(f"{program} {command} has not answered; exit code {done.returncode} "
                                f"{done.stderr.strip()}".rstrip()) from None
    for line in before.splitlines():
        if line:
            warnings.warn(line.removeprefix("warning: "), stacklevel=errors.outside())
    if done.returncode == 0:
        return answer
    text, codes = answer["error"], answer.get("codes") or ()
    error = errors.from_message({"text": text, "codes": codes})
    if type(error) is errors.CairnError:
        error = _KINDS.get(answer["kind"], errors.CairnError)(text, tuple(codes))
    raise error
