#!/bin/bash
#BSUB -J train
#BSUB -nnodes 2
#BSUB -W 1:00
#
# LSF with jsrun: one resource set per host, with all its ranks in it.
#
#   python -m runner jobscript --scheduler lsf --submit TARGET ARGS...
#   RANKS_PER_HOST=4 bsub mpi_scripts/lsf_jsrun.sh TARGET ARGS...       where the site has bsub read the lines above from a file
#
# With GPUs: GPUS_PER_HOST=4.
set -euo pipefail

options=(--rs_per_host 1 --tasks_per_rs "${RANKS_PER_HOST:-4}" --cpu_per_rs ALL_CPUS --bind none)
if [ -n "${GPUS_PER_HOST:-}" ]; then options+=(--gpu_per_rs "$GPUS_PER_HOST"); fi
# exec: a signal to this script's process reaches the launcher, which hands it on (docs/train/preemption.md).
exec jsrun "${options[@]}" "${PYTHON:-python}" -m mpi_scripts.console "$@"
