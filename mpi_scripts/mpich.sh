#!/bin/bash
# MPICH, on this host or on several:
#
#   RANKS=4 mpi_scripts/mpich.sh TARGET ARGS...
#   HOSTS=a:4,b:4 RANKS=8 mpi_scripts/mpich.sh TARGET ARGS...      4 ranks on each of two hosts, reached by ssh
set -euo pipefail

options=(-n "${RANKS:-2}" -bind-to none)
if [ -n "${HOSTS:-}" ]; then options+=(-hosts "$HOSTS"); fi
# exec: a signal to this script's process reaches the launcher, which hands it on (docs/train/preemption.md).
exec "${MPIRUN:-mpiexec}" "${options[@]}" "${PYTHON:-python}" -m mpi_scripts.console "$@"
