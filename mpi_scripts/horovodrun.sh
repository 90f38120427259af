#!/bin/bash
# Horovod's own launcher, with its gloo controller (no MPI needed) on this host or on several:
#
#   RANKS=4 mpi_scripts/horovodrun.sh TARGET ARGS...
#   HOSTS=a:4,b:4 RANKS=8 mpi_scripts/horovodrun.sh TARGET ARGS...
set -euo pipefail

options=(--gloo -np "${RANKS:-2}")
if [ -n "${HOSTS:-}" ]; then options+=(-H "$HOSTS"); fi
# exec: SIGTERM to this script's process reaches the launcher, which hands it on; SIGUSR1 would end it (docs/train/preemption.md).
exec horovodrun "${options[@]}" "${PYTHON:-python}" -m mpi_scripts.console "$@"
