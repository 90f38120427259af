"""What a job's variables leave for a job that is submitted from inside it, and for a launcher that is started there."""

from __future__ import annotations

from runner.launch.detect import detect
from runner.launch.mislaunch import refuse_mislaunch
from runner.launch.outer_job import for_a_new_job, places_of_step
from tests.unit.launch.test_detect import CAPTURED, captured

# What a step of Slurm that is bound to cores has, beside the captured variables.
BOUND = {
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "SLURM_CPU_BIND_LIST": "0x1",
    "SLURM_CPU_BIND_TYPE": "mask_cpu:",
    "SLURM_CPU_BIND_VERBOSE": "quiet",
    "SLURM_MEM_BIND": "quiet,local",
    "SLURM_DISTRIBUTION": "block",
}
OWN = {
    "PATH": "/usr/bin",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SLURM_CLUSTERS": "big",
    "SBATCH_ACCOUNT": "open-1-2",
    "OMPI_MCA_btl": "^ofi",
    "PMIX_MCA_gds": "hash",
    "OMP_NUM_THREADS": "4",
    "RANK": "0",
}


def test_a_new_job_gets_nothing_of_the_outer_ones() -> None:
    step = (
        captured("slurm")
        | BOUND
        | {"SLURM_STEP_GPUS": "2", "CUDA_VISIBLE_DEVICES": "0", "SLURM_TRES_PER_TASK": "cpu:1"}
    )
    assert for_a_new_job(step | OWN) == OWN
    assert for_a_new_job(captured("slurm-batch-shell") | OWN) == OWN


def test_a_users_own_settings_are_kept_outside_of_jobs() -> None:
    chosen = OWN | {"SLURM_CPU_BIND": "cores", "SRUN_CPUS_PER_TASK": "4", "CUDA_VISIBLE_DEVICES": "1"}
    assert for_a_new_job(chosen) == chosen


def test_a_new_job_is_no_rank_of_the_launcher_above_the_one_that_submits_it() -> None:
    for name in CAPTURED:
        left = for_a_new_job(captured(name))
        assert detect(left | captured("slurm")).launcher.name == "slurm", name
    for mark in ({"LSF_PM_TASKID": "2"}, {"PBS_TASKNUM": "2"}):
        refuse_mislaunch(detect(for_a_new_job(mark | {"LSB_DJOB_NUMPROC": "2"})))


def test_a_launcher_in_a_step_is_not_told_the_steps_places() -> None:
    assert set(places_of_step(captured("slurm") | BOUND)) == set(BOUND)
    assert places_of_step(captured("slurm-batch-shell") | {"SLURM_CPU_BIND": "cores"}) == []
