"""Parts of training loops that the pages show."""

import os

import cairn
import cairn.torch


def with_accelerate(accelerator, model, optimizer, path, step):
    """Saves the results of accelerator.prepare, for any of its plugins but DeepSpeed. All ranks call it."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = accelerator.unwrap_model(model, keep_torch_compile=False)
    weights, moments = get_state_dict(model, optimizer.optimizer)    # the names of the parameters, sharded or not
    return cairn.torch.async_save({"model": weights, "optim": moments, "step": step}, path, step=step)


def from_accelerate(accelerator, model, optimizer, path):
    """Loads it again, into any number of ranks. It returns the step to continue with."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = accelerator.unwrap_model(model, keep_torch_compile=False)
    weights, moments = get_state_dict(model, optimizer.optimizer)
    state = {"model": weights, "optim": moments, "step": -1}
    cairn.torch.load(state, path)
    set_state_dict(model, optimizer.optimizer, model_state_dict=weights, optim_state_dict=moments)
    return state["step"] + 1


def write_metrics(report, path):
    """Writes the report of a save as a file of Prometheus' text format, for the textfile collector of node_exporter."""
    rows = [("cairn_save_step", report.step), ("cairn_save_bytes", report.bytes),
            ("cairn_save_rank_bytes", report.rank_bytes), ("cairn_save_plan_seconds", report.plan_seconds),
            ("cairn_save_write_seconds", report.write_seconds)]
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.writelines(f"# TYPE {name} gauge\n{name} {value}\n" for name, value in rows if value is not None)
    os.replace(path + ".new", path)                                  # the collector never sees half of it
