"""The entry point of verl, in whose processes it is imported. Without CAIRN_VERL=1 it does nothing."""

import os

if os.environ.get("CAIRN_VERL") == "1":
    try:
        from cairn.verl import install

        install()
    except Exception as e:
        # verl would hide the error, and train on without cairn.
        raise SystemExit(f"CAIRN_VERL=1: {type(e).__name__}: {e}") from e
