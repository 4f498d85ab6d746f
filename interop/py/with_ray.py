"""Runs python/examples/ray_train.py, and kills a worker: with_ray.py FOLDER WORKERS STEPS [KILL]."""

import os
import signal
import sys

import ray
import ray.train

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "examples"))

import ray_train

KILL = int(sys.argv.pop(4)) if len(sys.argv) > 4 else None


def dying(config):
    """Trains, and dies once, when rank 0 has begun a save."""
    report, mark = ray.train.report, config["mark"]

    def reported(metrics, *args, **kwargs):
        report(metrics, *args, **kwargs)
        if metrics["step"] == config["kill"] and ray.train.get_context().get_world_rank() == 0 \
                and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

    ray.train.report = reported
    ray_train.train(config)


def main():
    paths = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(ray_train.__file__), os.environ["PYTHONPATH"]]
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20,
             runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths),
                                       "CAIRN_ARENA_BYTES": str(64 << 20)}})
    mark = os.path.abspath(sys.argv[1]) + "-mark"
    loop = ray_train.train if KILL is None else lambda config: dying({**config, "kill": KILL, "mark": mark})
    ray_train.main(loop)
    ray.shutdown()


if __name__ == "__main__":
    main()
