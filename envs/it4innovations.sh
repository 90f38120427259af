# IT4Innovations (Karolina, Barbora): source this in the checkout, on a login node and in job scripts.
#
#   source envs/it4innovations.sh
#   python -m runner jobscript --nodes 2 --gpus-per-node 8 --cores-per-rank 16 --queue qgpu --account PROJECT \
#     --time 1:00:00 workloads.mnist                         all of two of Karolina's accelerated nodes: 8 A100 each
#   python -m runner jobscript --nodes 2 --ranks-per-node 4 --cores-per-rank 32 --queue qcpu_exp --account PROJECT \
#     --time 0:10:00 doctor                                  the express queue: a look at two CPU nodes
#
# Not tried by the tests. From the site's documentation: Slurm on all clusters; qgpu hands out eighths of a node, a GPU
# with 16 cores each; qcpu whole nodes. Module versions change: `ml av Python`, `ml av OpenMPI` list those of today.

ml purge # modules that a login shell loads must not mix with ours
# A Python that the site keeps up, with headers; the environment itself is made of wheels.
ml Python/3.10.4-GCCcore-11.3.0-bare
# Only for mpirun (the DDP course's way): of the same compiler, and built with the site's UCX. srun needs no MPI.
ml OpenMPI/4.1.4-GCC-11.3.0-CUDA-11.7.0

# A home has 25 GB, and torch takes 5 of them: RUNNER_VENV names another place, in the project's folder say.
source envs/venv.sh
# Horovod, for those who want it, once: python envs/build_horovod.py (the OpenMPI module has the mpicxx, its GCC is new enough)
# The interface that all nodes share is found by the runner; to choose: export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
