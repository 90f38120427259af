#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#
# mpirun inside a Slurm job: it takes hosts and slots from the job.
#
#   sbatch mpi_scripts/slurm_mpirun.sh TARGET ARGS...
#
# Open MPI, Intel MPI and MPICH; MPIRUN=/path/mpirun chooses one. Load its module before you submit, or here.
set -euo pipefail

mpirun=${MPIRUN:-mpirun}
case $("$mpirun" --version 2>&1) in
  *"Open MPI"* | *"PRRTE"* | *OpenRTE*)
    # Open MPI binds each rank to one core when they are few, and its data loaders and threads with it.
    options=(--bind-to none)
    # It sends SIGTERM one second before SIGKILL; a checkpoint takes longer.
    export OMPI_MCA_odls_base_sigkill_timeout=${GRACE:-30} PRTE_MCA_odls_base_sigkill_timeout=${GRACE:-30}
    ;;
  *Intel*)
    options=()
    export I_MPI_PIN_DOMAIN=${I_MPI_PIN_DOMAIN:-auto} I_MPI_HYDRA_BOOTSTRAP=${I_MPI_HYDRA_BOOTSTRAP:-slurm}
    ;;
  *)
    options=(-bind-to none)
    ;;
esac
"$mpirun" "${options[@]}" -np "$SLURM_NTASKS" "${PYTHON:-python}" -m runner "$@"
