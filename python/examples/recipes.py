"""Parts of training loops that docs/python.md shows."""

import os
import signal

import cairn
import cairn.torch


def train_until_told(train_step, state, run, steps, every=100):
    """Trains until a signal announces the end, saves, and returns the step to continue with."""
    told = []
    for number in (signal.SIGTERM, signal.SIGUSR1):                  # Kubernetes, and Slurm with --signal
        signal.signal(number, lambda number, frame: told.append(number))
    save = None
    for step in range(state["step"] + 1, steps):
        train_step(step)
        state["step"] = step
        if told or (step + 1) % every == 0 or step + 1 == steps:
            if save:
                save.result()
            save = cairn.torch.async_save(state, f"{run}/step-{step}", step=step)
        if told:
            break
    if save:
        save.result()                                                # before the container and its saver processes end
    cairn.torch.close()
    return state["step"] + 1


def with_accelerate(accelerator, model, optimizer, path, step):
    """Saves what accelerator.prepare returned, for any of its plugins but DeepSpeed. All ranks call it."""
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
