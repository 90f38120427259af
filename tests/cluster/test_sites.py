"""The scripts of ``jobscript --site``, run on virtual hosts. What is not here is put in their place by name: partitions, modules, GPUs, PALS."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from runner.tools.jobscript.site import load_site, site_names
from tests.cluster.job_scripts import submit
from tests.cluster.launchers import PREFIXES
from tests.cluster.virtual import Cluster
from tests.launching import RUNNER, ok

# Sourced by the script's bash: a module command that loads every module.
MODULES = 'module() { [ "$1" != load ] || export LOADEDMODULES="${LOADEDMODULES:-}:$2"; }\n'
# PALS' mpiexec (its manual's options), by MPICH's: it gives each rank PALS' variables, and not MPICH's.
MPIEXEC = """#!/bin/bash
while [ $# -gt 0 ]; do
  case $1 in -n) ranks=$2; shift 2 ;; --ppn) ppn=$2; shift 2 ;; --cpu-bind) shift 2 ;; *) break ;; esac
done
hosts=$(sort -u "$PBS_NODEFILE" | paste -sd,)
exec {mpiexec} -launcher ssh -launcher-exec {agent} -iface eth0 -hosts "$hosts" -ppn "$ppn" -n "$ranks" bash -c '
  export PALS_RANKID=$PMI_RANK PALS_SIZE=$PMI_SIZE PALS_LOCAL_RANKID=$MPI_LOCALRANKID PALS_LOCAL_SIZE=$MPI_LOCALNRANKS PALS_APID=7
  unset MPI_LOCALRANKID MPI_LOCALNRANKS; exec "$@"' bash "$@"
"""


def script_of(vc: Cluster, site: str, *options: str) -> Path:
    path = vc.folder / f"{site}.sh"
    target = ["workloads.linear", "--epochs", "2", "--checkpoint-dir", str(vc.folder / f"runs-{site}")]
    ok(vc.run("node1", [*RUNNER, "jobscript", "--site", site, "--nodes", "2", *options, "-o", str(path), *target]))
    profile = load_site(site)
    text = path.read_text().replace(f"--device {profile.device}", "--device cpu")
    for word in profile.launch:  # masks of cores that are not here
        text = text.replace(f"{shlex.quote(word)} ", "") if word.startswith("--cpu-bind=") else text
    path.write_text(text)
    (vc.folder / "modules").write_text(MODULES)
    return path


@pytest.mark.parametrize("site", [name for name in site_names() if load_site(name).scheduler == "slurm"])
def test_a_script_for_slurm_trains_on_two_hosts(vc: Cluster, site: str) -> None:
    shape = ["--partition=main", "--ntasks-per-node=2", "--cpus-per-task=1", "--gpus-per-node=2"]
    text = submit(vc, script_of(vc, site), shape, BASH_ENV=str(vc.folder / "modules"))
    assert "done: 32 steps" in text, text
    assert "without effect" not in text


def test_a_script_for_pals_trains_on_two_hosts(vc: Cluster) -> None:
    script = script_of(vc, "aurora")
    text = script.read_text().replace("* 12))", "* 2))").replace("--ppn 12", "--ppn 2")
    script.write_text(text)
    nodes, programs = vc.folder / "aurora.nodes", vc.folder / "aurora.programs"
    nodes.write_text("node1\nnode2\n")
    programs.mkdir(exist_ok=True)
    (programs / "mpiexec").write_text(MPIEXEC.format(mpiexec=PREFIXES / "mpich/bin/mpiexec", agent=vc.agent))
    (programs / "mpiexec").chmod(0o755)
    variables = {
        "BASH_ENV": str(vc.folder / "modules"),
        "PBS_NODEFILE": str(nodes),
        "PBS_JOBID": "1.aurora",
        "MPI4PY_LIBMPI": str(PREFIXES / "mpich/lib/libmpi.so.12"),
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "eth0",
    }
    command = ["bash", "-c", f"PATH={programs}:$PATH exec bash {script}"]
    done = ok(vc.run("node1", command, **variables))
    assert "done: 32 steps" in done.stdout, done.stdout


def test_explain_names_the_profile(vc: Cluster) -> None:
    done = ok(vc.run("node1", ["srun", "--ntasks=2", *RUNNER, "explain", "--json"], RUNNER_SITE="lumi"))
    assert json.loads(done.stdout)["site"] == "lumi"
