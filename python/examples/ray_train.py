"""A training with Ray Train that saves in the background, and goes on when Ray restarts its workers.

    python ray_train.py FOLDER WORKERS STEPS
"""

import os
import sys

import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, CheckpointUploadMode, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import cairn.torch


def save(state, step, metrics):
    """Saves in the background, and reports the checkpoint to Ray when it is complete. All workers call it."""
    storage = ray.train.get_context().get_storage()
    name = f"step-{step:09}"
    path = os.path.join(storage.experiment_fs_path, name)            # in object storage: f"s3://{path}"
    handle = cairn.torch.async_save(state, path, step=step, overwrite=True)    # workers that died may have left one

    def wait(checkpoint, name):                                      # Ray calls it in a thread
        handle.result()
        return checkpoint

    ray.train.report(metrics, Checkpoint(path, storage.storage_filesystem), checkpoint_dir_name=name,
                     checkpoint_upload_mode=CheckpointUploadMode.ASYNC, checkpoint_upload_fn=wait,
                     delete_local_checkpoint_after_upload=False)


def train(config):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "optim": optimizer, "step": -1}
    if found := ray.train.get_checkpoint():                          # the newest one that was reported
        cairn.torch.load(state, found.path)
    rank = ray.train.get_context().get_world_rank()
    for step in range(state["step"] + 1, config["steps"]):
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(2 * step + rank))
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state["step"] = step
        if (step + 1) % 5 == 0:
            save(state, step, {"step": step, "loss": loss.item()})
    cairn.torch.close()


def main(loop=train):
    folder, workers, steps = os.path.abspath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    trainer = TorchTrainer(
        loop, train_loop_config={"steps": steps}, scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name="run", storage_path=folder, failure_config=FailureConfig(max_failures=2),
                             checkpoint_config=CheckpointConfig(num_to_keep=2)))
    result = trainer.fit()
    print(f"step {result.metrics['step']} loss {result.metrics['loss']:.6f} {result.checkpoint.path}", flush=True)


if __name__ == "__main__":
    main()
