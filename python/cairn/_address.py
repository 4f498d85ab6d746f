"""Addresses of checkpoints and runs: paths and URLs."""

from __future__ import annotations

import os
import re
import urllib.parse

from cairn.errors import OptionsError

SCHEMES = ("azblob", "file", "gs", "mem", "memory", "s3")  # of the URLs that the program opens


def address_of(path: str | bytes | os.PathLike[str] | None) -> str:
    """Returns the absolute path of a path or of file:///path, and other URLs, such as s3://bucket/run, as they are.

    memory:RUN becomes memory://RUN.
    The saver process opens URLs. It gets the environment of this process, in which the credentials of services may be.
    """
    if path is None:
        raise OptionsError("the path is None: if it comes from cairn.latest, there is no checkpoint yet",
                           ("storage.options",))
    address = os.fsdecode(path)
    if not address:
        raise OptionsError("the path is empty", ("storage.options",))
    try:
        address.encode()
    except UnicodeEncodeError:  # messages have no bytes for it, and it would become another path
        raise OptionsError(f"the path {address!r} is not UTF-8", ("storage.options",)) from None
    if re.match("memory:(?!/)", address):
        return f"memory://{address.removeprefix('memory:')}"
    if "://" not in address:
        if lost := re.match(r"([^/\\. ]{2,}):/", address):  # it would be a folder on the local disk
            raise OptionsError(f"a URL begins with {lost[1]}://, not {lost[1]}:/; pass it as str, because "
                               "pathlib.Path changes it", ("storage.options",))
        return os.path.abspath(address)
    if not address.startswith("file://"):
        return address
    url = urllib.parse.urlsplit(address)
    if url.netloc not in ("", "localhost") or not url.path or url.query or url.fragment:
        raise OptionsError(f"{address}: want a path or file:///path", ("storage.options",))
    return urllib.parse.unquote(url.path)


def memory_run(address: str) -> str | None:
    """Returns the name of the run in memory that an address is a part of, which may be empty, or None."""
    return address.removeprefix("memory://").partition("/")[0] if address.startswith("memory://") else None


def join_address(address: str, name: str) -> str:
    """Returns the address of a folder below an address, whose query it keeps."""
    if "://" not in address:
        return os.path.join(address, name)
    before, mark, query = address.partition("?")
    return f"{before.rstrip('/')}/{urllib.parse.quote(name, safe='=@:$&+,;~!*()')}{mark}{query}"


def split_address(address: str) -> tuple[str, str]:
    """Returns the address of what is above an address, whose query it keeps, and the name of the last part of it."""
    if "://" not in address:
        return os.path.split(address.rstrip("/"))
    scheme, _, rest = address.partition("://")
    before, mark, query = rest.partition("?")
    above, slash, name = before.rstrip("/").rpartition("/")
    return (f"{scheme}://{above}{mark}{query}", urllib.parse.unquote(name)) if slash else (address, "")
