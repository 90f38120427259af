#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=1:00:00
#SBATCH --open-mode=append
#
# mpirun inside a Slurm job: it takes hosts and slots from the job.
#
#   sbatch mpi_scripts/slurm_mpirun.sh TARGET ARGS...
#   sbatch --requeue mpi_scripts/slurm_mpirun.sh workloads.mnist --resume auto --requeue      queued again at the time limit
#
# Open MPI, Intel MPI and MPICH; MPIRUN=/path/mpirun chooses one. Load its module before you submit, or here.
# A checkpoint before the time limit: sbatch --signal=B:USR1@120 … and a target that saves on SIGUSR1 (docs/train/preemption.md).
set -euo pipefail

# Submitted from a step of another job, this one has got that step's places for its tasks (the one core that it was bound to).
if [ -n "${SLURM_STEP_ID:-}" ]; then unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_@}" "${!SLURM_DIST@}"; fi

mpirun=${MPIRUN:-mpirun}
case $("$mpirun" --version 2>&1) in
  *"Open MPI"* | *"PRRTE"* | *OpenRTE*)
    # Open MPI binds each rank to one core when they are few, and its data loaders and threads with it.
    options=(--bind-to none)
    ;;
  *Intel*)
    # Its mpirun is a shell script: a signal would end it and leave the ranks running.
    mpirun=${mpirun/%mpirun/mpiexec.hydra} options=()
    export I_MPI_PIN_DOMAIN=${I_MPI_PIN_DOMAIN:-auto} I_MPI_HYDRA_BOOTSTRAP=${I_MPI_HYDRA_BOOTSTRAP:-slurm}
    ;;
  *)
    options=(-bind-to none)
    ;;
esac
# exec: a signal to this script's process reaches the launcher, which hands it on (docs/train/preemption.md).
exec "$mpirun" "${options[@]}" -np "$SLURM_NTASKS" "${PYTHON:-python}" -m mpi_scripts.console "$@"
