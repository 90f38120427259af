#!/bin/bash
# Intel MPI, on this host or on several:
#
#   RANKS=4 mpi_scripts/intelmpi.sh TARGET ARGS...
#   HOSTS=a,b PER_HOST=4 RANKS=8 mpi_scripts/intelmpi.sh TARGET ARGS...      reached by ssh
#
# Source the vendor's setvars.sh or load the module first. Where there is no fabric: export FI_PROVIDER=tcp.
set -euo pipefail

options=(-n "${RANKS:-2}")
if [ -n "${HOSTS:-}" ]; then options+=(-hosts "$HOSTS" -ppn "${PER_HOST:-1}"); fi
export I_MPI_PIN_DOMAIN=${I_MPI_PIN_DOMAIN:-auto} # each rank its share of the cores, not one
# Intel's mpirun is a shell script: a signal would end it and leave the ranks running. mpiexec.hydra hands signals on.
mpirun=${MPIRUN:-mpirun}
exec "${mpirun/%mpirun/mpiexec.hydra}" "${options[@]}" "${PYTHON:-python}" -m mpi_scripts.console "$@"
