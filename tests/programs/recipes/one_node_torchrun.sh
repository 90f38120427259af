#!/bin/bash
# torchrun on one node, which meets at an address of its own: PORT=… one_node_torchrun.sh TORCHRUN RANKS ARGS…
torchrun=$1 ranks=$2
shift 2
"$torchrun" --nnodes=1 --nproc-per-node="$ranks" --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="localhost:$PORT" "$@"
