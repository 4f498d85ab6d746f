#!/bin/sh
#SBATCH --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 --time=12:00:00
#SBATCH --requeue --open-mode=append
#SBATCH --signal=B:USR1@120     # SIGUSR1 to this script, 120 seconds before the time is up
RUN=${RUN:-/shared/run}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) RUN CAIRN_LOG="$RUN.log"

# Without --kill-on-bad-exit: a rank that has saved ends before the others do. --wait ends the others if a rank crashes.
srun --wait=60 sh -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID \
    LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE exec python preempt.py --folder "$RUN" --grace 110' &
tasks=$!
trap 'told=yes; kill -USR1 $tasks' USR1     # srun passes it on to the tasks
wait $tasks; status=$?
while kill -0 $tasks 2>/dev/null; do wait $tasks; status=$?; done     # a signal ends a wait early

# The time was up, the ranks have saved, and some steps are left.
if [ "$told" ] && [ $status -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
