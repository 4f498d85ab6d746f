#!/bin/sh
#SBATCH --nodes=4 --ntasks-per-node=8 --gpus-per-node=8 --time=24:00:00
RUN=${RUN:-/shared/run}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) RUN CAIRN_LOG="$RUN.log"

# A step that fails is started again at once, in the same job: the memory of the nodes has the checkpoints.
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    export MASTER_PORT=$((20000 + (SLURM_JOB_ID + attempt) % 10000))
    srun --kill-on-bad-exit=1 sh -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID \
        LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE exec python memory.py --folder "$RUN"' && exit 0
done
exit 1
