#!/bin/bash
# Open MPI, on this host or on several:
#
#   RANKS=4 mpi_scripts/openmpi.sh TARGET ARGS...
#   HOSTS=a:4,b:4 RANKS=8 mpi_scripts/openmpi.sh TARGET ARGS...      4 slots on each of two hosts, reached by ssh
#
# Inside a Slurm, PBS or LSF job leave HOSTS out: mpirun takes them from the job.
set -euo pipefail

options=(-np "${RANKS:-2}" --bind-to none) # else each rank is bound to one core when there are few of them
if [ -n "${HOSTS:-}" ]; then options+=(--host "$HOSTS"); fi
# exec: a signal to this script's process reaches the launcher, which hands it on (docs/train/preemption.md).
exec "${MPIRUN:-mpirun}" "${options[@]}" "${PYTHON:-python}" -m mpi_scripts.console "$@"
