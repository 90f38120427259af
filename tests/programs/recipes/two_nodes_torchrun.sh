#!/bin/bash
# A torchrun on each node, by srun; they meet at the first node's address: PORT=… two_nodes_torchrun.sh TORCHRUN ARGS…
torchrun=$1
shift
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 -w "$first" hostname --ip-address)
srun "$torchrun" --nnodes="$SLURM_NNODES" --nproc-per-node="$SLURM_CPUS_PER_TASK" --rdzv-id="$SLURM_JOB_ID" \
  --rdzv-backend=c10d --rdzv-endpoint="$address:$PORT" "$@"
