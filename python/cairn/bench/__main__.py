"""Compares cairn with PyTorch's own checkpoints and safetensors, beside what the hardware does.

Everything runs in one process, one after the other, with the same state. Rates are GB/s
(10^9 bytes); compare them within one run only, because disks and other programs change them.

stall        how long training stands still in a background save, from the second save on
durable      the time until the checkpoint is complete and on disk
load         into the same tensors, with the files out of the page cache (cold) and in it (warm)
small        the stall of a background save of many small tensors
host memory  the largest that this process and its children had, less what they had before;
             memory that they share counts once, the page cache does not count
floor        a copy to pinned memory, and a plain file: buffered and O_DIRECT, with 1 and 4
             threads, of which the fastest counts
DCP, tuned   PyTorch's FileSystemWriter with 4 threads, and a stager that keeps pinned shared memory

Then a training loop runs with and without background saves, and the times of its steps between
saves are compared.

Only if --only names them:

weights      the weights of a model into new tensors, as a server loads them, by cairn, safetensors, and
             fastsafetensors and runai-model-streamer if they are installed
share        how many bytes 4 ranks of a host read of a checkpoint, if they read for each other and if not
publish      versions of weights of which 1 % of the elements change: from publish to tensors in use of
             another process, beside a save and a load of everything
memory       saves to the memory of 2 hosts, which are processes of this one: the stall beside a copy and a save to
             a folder, the time until the copies are complete, and from the start of processes to their loaded
             state, from memory and from the disk. It needs 4.1 times --gib in CAIRN_MEMORY, or /dev/shm
frameworks   background saves and loads of frameworks that are installed, by their own checkpoints and by cairn's plugs
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import TypedDict

from cairn.bench import frameworks, hosts, publish, share, steps, table, weights
from cairn.errors import CairnError

EXAMPLES = """examples:
  python -m cairn.bench                              8 GiB on the GPU, or on the CPU if there is none; some minutes
  python -m cairn.bench --gib 1 --folder /mnt/data   a smaller state, on the disk that is to be measured
  python -m cairn.bench --only floor,cairn           two rows of the table
  python -m cairn.bench --only steps                 only the training loop
  python -m cairn.bench --only weights,share         loads of servers
  python -m cairn.bench --only publish               versions of weights
  python -m cairn.bench --only memory --gib 1        checkpoints in memory
  python -m cairn.bench --only frameworks            Megatron-core, DeepSpeed, Accelerate, if installed
  python -m cairn.bench --json > result.json
"""

ROWS = {"floor": table.FLOOR, "dcp": table.DCP, "tuned": table.TUNED, "safetensors": table.SAFETENSORS,
        "cairn": table.CAIRN}

MORE = ["weights", "share", "publish", "memory", "frameworks"]  # that --only names

COLUMNS: list[tuple[table.Figure, str]] = [
    ("stall_gbs", "stall GB/s"), ("durable_gbs", "durable GB/s"), ("load_cold_gbs", "load cold"),
    ("load_warm_gbs", "load warm"), ("small_stall_ms", "small ms"), ("peak_host_gb", "host memory GB")]


class Small(TypedDict):
    count: int
    bytes: int


class Goal(TypedDict):
    """A ratio, and whether it is as it should be. None: there is no goal."""

    name: str
    value: float
    least: float | None
    most: float | None
    met: bool | None


class Result(TypedDict, total=False):
    """What was measured."""

    device: str
    torch: str
    cpus: int | None
    small: Small
    bytes: int
    rows: dict[str, table.Row]
    steps: dict[str, steps.Found]
    weights: weights.Found
    share: share.Found
    publish: publish.Found
    memory: hosts.Found
    frameworks: frameworks.Found
    goals: list[Goal]


class Trouble(Exception):
    """Why nothing can be measured, and what to do."""


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    try:
        result = measure(args)
    except Trouble as e:
        print(f"python -m cairn.bench: {e}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        show(result)
    return 0


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cairn.bench", description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=8, help="size of the state (8)")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="where the state is: cuda if there is a GPU")
    parser.add_argument("--folder", help="a folder on the disk to measure (the one for temporary files)")
    parser.add_argument("--repeat", type=int, default=3,
                        help="how often each thing is measured, after a first time (3)")
    parser.add_argument("--small-count", type=int, default=1000, help="how many small tensors (1000)")
    parser.add_argument("--small-kib", type=int, default=64, help="size of a small tensor (64)")
    parser.add_argument("--only", metavar="ROWS", help=f"some of: {','.join([*ROWS, 'steps', *MORE])}")
    parser.add_argument("--no-steps", action="store_true", help="without the training loop, which takes about a minute")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    args.rows = args.only.split(",") if args.only else [*ROWS, "steps"]
    if args.no_steps and "steps" in args.rows:
        args.rows.remove("steps")
    if unknown := sorted(set(args.rows) - {*ROWS, "steps", *MORE}):
        parser.error(f"--only has {unknown[0]!r}; it may have {', '.join([*ROWS, 'steps', *MORE])}")
    if not args.rows:
        parser.error("--only and --no-steps leave nothing to measure")
    if args.gib <= 0 or args.small_count < 1 or args.small_kib < 1 or args.repeat < 1:
        parser.error("sizes and counts must be positive")
    return args


def measure(args: argparse.Namespace) -> Result:
    """Measures what the arguments ask for."""
    try:
        import torch
    except ImportError as e:
        raise Trouble(f"there is no torch ({e}): install it, for example by 'pip install torch', "
                      "or use a Python that has it") from None
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise Trouble(f"PyTorch {torch.__version__} finds no GPU: use --device cpu")
    size = int(args.gib * (1 << 30)) // 4096 * 4096 or 4096
    begin = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begin:6.1f} s  {text}", file=sys.stderr, flush=True)

    result: Result = {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
                              "torch": torch.__version__, "cpus": os.cpu_count(),
                              "small": {"count": args.small_count, "bytes": args.small_kib << 10}}
    copies = 3.5 if {*MORE} & {*args.rows} else 2.2
    folder = make_folder(args.folder, copies * size + (args.small_count * args.small_kib << 11) + (1 << 28))
    try:
        rows = [name for row, name in ROWS.items() if row in args.rows]
        if rows:
            t = table.Table(torch, device, size, folder, args.repeat, (args.small_count, args.small_kib << 10), say)
            result["bytes"], result["rows"] = t.bytes, t.run(rows)
            del t
        if "steps" in args.rows:
            result["steps"] = steps.Steps(torch, device, size, folder, say).run()
        if "weights" in args.rows:
            result["weights"] = weights.Weights(torch, device, size, folder, args.repeat, say).run()
            empty(folder)
        if "share" in args.rows:
            result["share"] = share.Share(torch, min(size, 1 << 29), folder, say).run()
        if "publish" in args.rows:
            result["publish"] = publish.Publish(torch, device, size, folder, args.repeat, say).run()
            empty(folder)
        if "memory" in args.rows:
            result["memory"] = hosts.Hosts(torch, device, size, folder, args.repeat, say).run()
        if "frameworks" in args.rows:
            result["frameworks"] = frameworks.Frameworks(torch, device, size, folder, args.repeat, say).run()
    except hosts.NoRoom as e:
        raise Trouble(str(e)) from None
    except torch.OutOfMemoryError as e:
        raise Trouble(f"the state does not fit on the device: use a smaller --gib than {args.gib:g} ({e})") from None
    except (OSError, CairnError) as e:
        if getattr(e, "errno", None) == errno.ENOSPC or "no space left" in str(e):
            raise Trouble(f"{folder} is full: use --folder for another disk, or a smaller --gib than "
                          f"{args.gib:g}") from None
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result["goals"] = list(goals(result, device))
    return result


def empty(folder: str) -> None:
    """Removes what is in a folder."""
    for entry in os.listdir(folder):
        path = os.path.join(folder, entry)
        shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.unlink(path)


def make_folder(parent: str | None, need: float) -> str:
    """Makes a folder for checkpoints, on a disk with enough room."""
    parent = parent or tempfile.gettempdir()
    try:
        free = shutil.disk_usage(parent).free
        if free < need:
            raise Trouble(f"{parent} has {free / 1e9:.1f} GB of room, and {need / 1e9:.1f} GB are needed: "
                          "use --folder for another disk, or a smaller --gib")
        return tempfile.mkdtemp(prefix="cairn-bench-", dir=parent)
    except OSError as e:
        raise Trouble(f"{parent} cannot be used: {e.strerror}; --folder names another folder") from None


def goal(name: str, value: float, least: float | None = None, most: float | None = None) -> Goal:
    met = None
    if least is not None or most is not None:
        met = (least is None or value >= least) and (most is None or value <= most)
    return {"name": name, "value": value, "least": least, "most": most, "met": met}


def goals(result: Result, device: str) -> Iterator[Goal]:
    """Yields how cairn compares with the other rows. With a GPU, some ratios have a goal."""
    rows = result.get("rows", {})
    cairn, floor = rows.get(table.CAIRN, {}), rows.get(table.FLOOR, {})
    others = [rows[n] for n in (table.DCP, table.TUNED, table.SAFETENSORS) if n in rows]

    def ratio(name: str, key: table.Figure, of: float | None, least: float | None = None,
              most: float | None = None) -> Iterator[Goal]:
        if key in cairn and of:
            yield goal(name, cairn[key] / of, least, most) if device == "cuda" else goal(name, cairn[key] / of)

    yield from ratio("stall / pinned copy", "stall_gbs", floor.get("stall_gbs"), 0.75)
    yield from ratio("stall, GB/s", "stall_gbs", 1, 40)
    yield from ratio(f"durable / plain write ({floor.get('write_by')})", "durable_gbs", floor.get("durable_gbs"), 0.9)
    yield from ratio(f"load cold / plain read ({floor.get('read_by')})", "load_cold_gbs", floor.get("load_cold_gbs"),
                     0.9)
    yield from ratio("load warm, GB/s", "load_warm_gbs", 1, 12)
    yield from ratio("small: stall / copies to pinned memory", "small_stall_ms", floor.get("small_stall_ms"))
    for name in (table.DCP, table.TUNED):
        yield from ratio(f"small: stall / {name}", "small_stall_ms", rows.get(name, {}).get("small_stall_ms"), most=0.2)
    yield from ratio("import cairn, ms", "import_ms", 1, most=50)
    for key, title in COLUMNS[:4]:
        best = max((r[key] for r in others if key in r), default=None)
        yield from ratio(f"{title.removesuffix(' GB/s')} / best of the others", key, best)
    for name, found in result.get("steps", {}).items():
        most = 2 if device == "cuda" and name in (table.CAIRN, "cairn, with exports") else None
        yield goal(f"steps between saves by {name}, % longer", found["overhead_percent"]["mean"], most=most)
    yield from more_goals(result, device)


def more_goals(result: Result, device: str) -> Iterator[Goal]:
    """Yields the goals of what --only names."""
    def asked(name: str, value: float, least: float | None = None, most: float | None = None) -> Goal:
        return goal(name, value, least, most) if device == "cuda" else goal(name, value)

    if loaders := result.get("weights", {}).get("loaders"):
        ours = loaders["cairn"]
        yield asked(f"weights cold / plain read ({loaders['plain file']['read_by']})", ours["of_plain"], 0.9)
        yield asked("weights warm, GB/s", ours["load_warm_gbs"], 20)
        if others := [row for name, row in loaders.items() if not name.startswith(("cairn", "plain"))]:
            yield goal("weights cold / best of the others",
                       ours["load_cold_gbs"] / max(row["load_cold_gbs"] for row in others))
            yield goal("weights warm / best of the others",
                       ours["load_warm_gbs"] / max(row["load_warm_gbs"] for row in others))
    for row in result.get("share", {}).get("loads", []):
        if row["share"]:
            yield goal(f"share: read / checkpoint, {row['kind']}, {row['format']}",
                       sum(row["bytes_read"]) / result["share"]["bytes"], most=1.1)
    if found := result.get("publish"):
        yield asked("publish: bytes moved / all", found["moved"], most=0.03)
        yield asked("publish: stall, GB/s", found["stall_gbs"], 40)
        yield asked("publish: applied / full transfer", found["applied_of_full"], most=0.25)
        yield asked("publish: pause, s", found["pause_seconds"], most=0.1)
    if "frameworks" in result:
        for name, ratio in frameworks.ratios(result["frameworks"]):
            yield goal(name, ratio)
    if kept := result.get("memory"):
        saves = kept["saves"]
        yield asked(f"memory: stall / {'pinned' if device == 'cuda' else 'plain'} copy",
                    saves["stall_gbs"] / saves["copy_gbs"], 0.9)
        yield goal("memory: stall / stall of a save to a folder", saves["stall_gbs"] / saves["disk_stall_gbs"])
        yield goal("memory: copied / durable, in time", saves["copied_seconds"] / saves["durable_seconds"])
        yield asked("memory: load, GB/s", kept["memory"]["load_gbs"], 20)
        yield goal("memory: load / load cold from the disk", kept["memory"]["load_gbs"] / kept["disk"]["load_gbs"])
        yield goal("memory: start to loaded / from the disk",
                   kept["memory"]["loaded_seconds"] / kept["disk"]["loaded_seconds"])


def show(result: Result) -> None:
    """Prints tables."""
    print(f"{result['device']}, {result['cpus']} CPUs, PyTorch {result['torch']}")
    if rows := result.get("rows"):
        small = result["small"]
        print(f"\nstate {result['bytes'] / 1e9:.2f} GB; "
              f"small: {small['count']} tensors of {small['bytes'] >> 10} KiB\n")
        print(f"{'':14}" + "".join(f"{title:>{len(title) + 3}}" for _, title in COLUMNS))
        for name, row in rows.items():
            cells = (f"{row[key]:.2f}" if key in row else "-" for key, _ in COLUMNS)
            print(f"{name:14}" + "".join(f"{cell:>{len(title) + 3}}" for cell, (_, title) in zip(cells, COLUMNS)))
        for name, row in rows.items():
            if notes := [f"{k.removesuffix('_by')}: {v}" for k, v in row.items() if k.endswith("_by")]:
                print(f"{name}: {'; '.join(notes)}")
        if "first_stall_gbs" in rows.get(table.CAIRN, {}):
            print(f"cairn's first save: stall {rows[table.CAIRN]['first_stall_gbs']:.2f} GB/s; it also takes memory "
                  "and starts a process")
    for name, found in result.get("steps", {}).items():
        show_steps(name, found)
    if "weights" in result:
        weights.show(result["weights"])
    if "share" in result:
        share.show(result["share"])
    if "publish" in result:
        publish.show(result["publish"])
    if "memory" in result:
        hosts.show(result["memory"])
    if "frameworks" in result:
        frameworks.show(result["frameworks"])
    if result["goals"]:
        print("\nratios of this run"
              + (", and the goals of cairn" if any(g["met"] is not None for g in result["goals"]) else ""))
    for g in result["goals"]:
        want = f"≥ {g['least']:g}" if g["least"] is not None else f"≤ {g['most']:g}" if g["most"] is not None else ""
        print(f"  {g['name']:52} {g['value']:8.2f}   {want:7} "
              f"{'' if g['met'] is None else 'met' if g['met'] else 'missed'}".rstrip())


def show_steps(name: str, found: steps.Found) -> None:
    by = f" ({found['by']})" if "by" in found else ""
    print(f"\nsteps, ms, with a background save of {found['bytes'] / 1e9:.2f} GB every {found['every']} steps by "
          f"{name}{by}:\n"
          f"{found['saves']} saves, under way during {found['under_way_percent']:.0f} % of the steps; "
          f"the stall of {found['stall_ms']:.1f} ms is not counted. The first step beside a save is "
          f"{found['first_percent']:.0f} % longer")
    print(f"{'':12}{'steps':>8}{'mean':>9}{'median':>9}{'p90':>9}{'p99':>9}{'most':>9}")
    for kind in ("without", "with"):
        s = found[kind]
        print(f"{kind:12}{s['steps']:8}" + "".join(f"{s[k]:9.2f}" for k in ("mean", "median", "p90", "p99", "most")))
    print(f"{'longer by':12}{'':8}"
          + "".join(f"{found['overhead_percent'][k]:+8.2f}%" for k in ("mean", "median", "p90", "p99")))
    print(f"{'from ms':>12}  {'without':36}with")
    for b in found["histogram"]:
        bars = (f"{'#' * round(24 * b[k]):24} {100 * b[k]:5.1f} %" for k in ("without", "with"))
        print(f"{b['from_ms']:12.2f}  " + "    ".join(bars))


if __name__ == "__main__":
    sys.exit(main())
