#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=1:00:00
#SBATCH --open-mode=append
#
# srun starts one torchrun per node, and torchrun the ranks: the courses' recipe, for scripts that want torchrun itself.
#
#   sbatch mpi_scripts/slurm_torchrun.sh TARGET ARGS...
#
# With GPUs: sbatch --gpus-per-node=4 …; RANKS_PER_NODE sets the ranks per node (default: GPUs, else cores).
set -euo pipefail

# Submitted from a step of another job, this one has got that step's places for its tasks (the one core that it was bound to).
if [ -n "${SLURM_STEP_ID:-}" ]; then unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_@}" "${!SLURM_DIST@}"; fi

ranks=${RANKS_PER_NODE:-${SLURM_GPUS_PER_NODE:-$SLURM_CPUS_PER_TASK}}
# The first node's own name for itself may be one that others do not know, so its address is asked for.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$first" hostname --ip-address | awk '{print $1}')
# A port of this job's own, below the range that kernels hand out.
port=$((15000 + SLURM_JOB_ID % 17000))

# exec: SIGTERM to this script's process reaches the launcher, which hands it on; SIGUSR1 would end it (docs/train/preemption.md).
exec srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
  "${TORCHRUN:-torchrun}" --nnodes="$SLURM_NNODES" --nproc-per-node="${ranks##*:}" \
  --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$address:$port" -m mpi_scripts.console "$@"
