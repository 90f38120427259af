#!/bin/bash
#PBS -N train
#PBS -l select=2:ncpus=16:mpiprocs=4
#PBS -l place=scatter
#PBS -l walltime=1:00:00
#
# mpirun inside a PBS job, which lists the hosts in PBS_NODEFILE, one line per rank.
#
#   python -m runner jobscript --scheduler pbs --submit TARGET ARGS...
#   qsub -V -l select=2:ncpus=16:mpiprocs=4 -l place=scatter -l walltime=1:00:00 -- "$PWD/mpi_scripts/pbs_mpirun.sh" TARGET ARGS...
#                             PBS Pro, which then hands the arguments on, and reads none of the lines above
#
# With GPUs: select=2:ncpus=16:mpiprocs=4:ngpus=4.
set -euo pipefail

cd "${PBS_O_WORKDIR:-.}"
ranks=$(wc -l <"$PBS_NODEFILE")
mpirun=${MPIRUN:-mpirun}
case $("$mpirun" --version 2>&1) in
  *"Open MPI"* | *PRRTE* | *OpenRTE*) options=(--hostfile "$PBS_NODEFILE" --bind-to none) ;;
  *Intel*)
    # Intel's mpirun is a shell script: a signal would end it and leave the ranks running.
    mpirun=${mpirun/%mpirun/mpiexec.hydra} options=(-machinefile "$PBS_NODEFILE")
    export I_MPI_HYDRA_RMK=${I_MPI_HYDRA_RMK:-pbs} # as that script sets it
    ;;
  *) options=(-machinefile "$PBS_NODEFILE") ;;
esac
# exec: a signal to this script's process reaches the launcher, which hands it on (docs/train/preemption.md).
exec "$mpirun" "${options[@]}" -np "$ranks" "${PYTHON:-python}" -m mpi_scripts.console "$@"
