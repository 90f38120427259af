#!/usr/bin/env bash
# What the virtual cluster and its tests need beside .venv: Debian's packages (as root), and MPICH and Intel MPI from
# the package index, each in a prefix of its own, because all of them have a program called mpirun.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=(openmpi-bin iproute2 slurm-wlm munge procps util-linux faketime)
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
    apt-get update -qq
    # Without starting the services: the cluster starts its own.
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
  fi
else
  echo "not root on Debian: ${packages[*]} have to be there" >&2
fi
for pair in mpich:mpich==5.0.2 intelmpi:impi-rt==2021.18.1; do
  prefix=.venv/mpi/${pair%%:*}
  [ -d "$prefix/bin" ] || .venv/bin/pip install --quiet --disable-pip-version-check --ignore-installed --prefix "$prefix" "${pair##*:}"
done
