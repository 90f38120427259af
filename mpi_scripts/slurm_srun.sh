#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=1:00:00
#SBATCH --open-mode=append
#
# Slurm starts the ranks itself: no MPI is needed, and none has to fit.
#
#   sbatch mpi_scripts/slurm_srun.sh TARGET ARGS...        e.g. workloads.mnist, or train.py --lr 0.1
#   sbatch --requeue mpi_scripts/slurm_srun.sh workloads.mnist --resume auto --requeue      queued again at the time limit
#
# With GPUs: sbatch --gpus-per-node=4 … (as many as ranks per node; each rank takes one).
# A checkpoint before the time limit: sbatch --signal=B:USR1@120 … and a target that saves on SIGUSR1 (docs/train/preemption.md).
set -euo pipefail

# Submitted from a step of another job, this one has got that step's places for its tasks (the one core that it was bound to).
if [ -n "${SLURM_STEP_ID:-}" ]; then unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_@}" "${!SLURM_DIST@}"; fi

# exec: a signal to this script's process reaches the launcher, which hands it on (docs/train/preemption.md).
# A rank that fails ends the job; without this the others run on. Since Slurm 22.05 srun gives its tasks one core
# each unless it is told again.
exec srun --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" "${PYTHON:-python}" -m mpi_scripts.console "$@"
