#!/bin/bash
#PBS -N train
#PBS -l select=2:ncpus=16:mpiprocs=4
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#
# mpirun inside a PBS job, which lists the hosts in PBS_NODEFILE, one line per rank.
#
#   qsub -- mpi_scripts/pbs_mpirun.sh TARGET ARGS...      with PBS Pro, which hands the arguments on
#
# With GPUs: select=2:ncpus=16:mpiprocs=4:ngpus=4. Not tried by the tests: PBS cannot be installed there.
set -euo pipefail

cd "${PBS_O_WORKDIR:-.}"
ranks=$(wc -l <"$PBS_NODEFILE")
mpirun=${MPIRUN:-mpirun}
case $("$mpirun" --version 2>&1) in
  *"Open MPI"* | *PRRTE* | *OpenRTE*) options=(--hostfile "$PBS_NODEFILE" --bind-to none) ;;
  *) options=(-machinefile "$PBS_NODEFILE") ;;
esac
export OMPI_MCA_odls_base_sigkill_timeout=${GRACE:-30} PRTE_MCA_odls_base_sigkill_timeout=${GRACE:-30}
"$mpirun" "${options[@]}" -np "$ranks" "${PYTHON:-python}" -m runner "$@"
