"""Parts of training loops that the pages show."""

import os


def write_metrics(report, path):
    """Writes the report of a save as a file of Prometheus' text format, for the textfile collector of node_exporter."""
    rows = [("cairn_save_step", report.step), ("cairn_save_bytes", report.bytes),
            ("cairn_save_rank_bytes", report.rank_bytes), ("cairn_save_plan_seconds", report.plan_seconds),
            ("cairn_save_write_seconds", report.write_seconds)]
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.writelines(f"# TYPE {name} gauge\n{name} {value}\n" for name, value in rows if value is not None)
    os.replace(path + ".new", path)                                  # the collector never sees half of it
