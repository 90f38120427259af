"""CPU quotas, in the files of both versions of control groups, on hosts and in containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.hardware.control_groups import confined_to_cores, control_groups, cpu_quota


def process(folder: Path, groups: str, mounts: list[tuple[str, str, str]], files: dict[str, str]) -> Path:
    """A process's folder in /proc; ``mounts``: the top group, the place, the type and the options of each file system."""
    (folder / "proc").mkdir()
    (folder / "proc" / "cgroup").write_text(groups)
    lines = ["22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw,discard"]
    for number, (root, point, kind) in enumerate(mounts):
        name, _, options = kind.partition(" ")
        lines.append(
            f"{30 + number} 22 0:{number} {root} {folder / point} rw,nosuid shared:9 - {name} {name} rw,{options}"
        )
    (folder / "proc" / "mountinfo").write_text("\n".join(lines) + "\n")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "proc"


V1 = [("/", "cpu", "cgroup cpu,cpuacct"), ("/", "memory", "cgroup memory"), ("/", "cpuset", "cgroup cpuset")]
IN_DOCKER = [("/docker/abc", "cpu", "cgroup cpu,cpuacct")]
V2 = [("/", "unified", "cgroup2 nsdelegate")]


def v1(folder: str, quota: int, period: int = 100_000) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": f"{period}\n"}


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "quota"),
    [
        # version 1: Slurm's step within the job
        ("4:cpu,cpuacct:/slurm/job_7/step_0\n", V1, v1("cpu/slurm/job_7", 350_000) | v1("cpu/slurm/job_7/step_0", -1), 3.5),
        ("4:cpuacct,cpu:/a\n", V1, v1("cpu/a", 50_000, 25_000), 2.0),
        ("4:cpu,cpuacct:/\n", V1, v1("cpu", -1), None),
        # another controller's group has another path
        ("5:cpuset:/a\n4:cpu,cpuacct:/b\n", V1, v1("cpu/a", 100_000) | v1("cpu/b", 200_000), 2.0),
        # a container: the path is the host's, and the mount begins at it, or at another container's
        ("4:cpu,cpuacct:/docker/abc\n", IN_DOCKER, v1("cpu", 150_000), 1.5),
        ("4:cpu,cpuacct:/docker/abc/sub\n", IN_DOCKER, v1("cpu/sub", 100_000) | v1("cpu", 150_000), 1.0),
        ("4:cpu,cpuacct:/kubepods/pod1/xyz\n", [("/", "cpu", "cgroup cpu,cpuacct")], v1("cpu", 150_000), 1.5),
        ("4:cpu,cpuacct:/../outside\n", V1, v1("cpu", 150_000), 1.5),
        # version 2, alone and beside version 1
        ("0::/job/step\n", V2, {"unified/job/cpu.max": "250000 100000\n", "unified/job/step/cpu.max": "max 100000\n"}, 2.5),
        ("0::/job\n4:cpu,cpuacct:/job\n", [*V1, *V2], v1("cpu/job", 300_000), 3.0),
        ("0::/../../init.scope\n", V2, {"unified/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", [], {}, None),
    ],
)  # fmt: skip
def test_the_cpu_quota(
    groups: str, mounts: list[tuple[str, str, str]], files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    assert cpu_quota(process(tmp_path, groups, mounts, files)) == quota


def test_the_folders_end_at_the_mount(tmp_path: Path) -> None:
    own = process(tmp_path, "6:memory:/a/b\n0::/c\n", [*V1, *V2], {})
    folders = [str(path.relative_to(tmp_path)) for path in control_groups("memory", own)]
    assert folders == ["memory/a/b", "memory/a", "memory", "unified/c", "unified"]


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("groups", "files", "is_confined"),
    [
        ("5:cpuset:/job\n", {"cpuset/cpuset.effective_cpus": "0-7\n", "cpuset/job/cpuset.effective_cpus": "0-3\n"}, True),
        ("5:cpuset:/job\n", {"cpuset/cpuset.effective_cpus": "0-7\n", "cpuset/job/cpuset.effective_cpus": "0-7\n"}, False),
        ("0::/job\n", {"unified/cpuset.cpus.effective": "0-7\n", "unified/job/cpuset.cpus.effective": "2\n"}, True),
        ("0::/job\n", {"unified/cpuset.cpus.effective": "0-7\n"}, False),
        ("0::/\n", {}, False),
    ],
)  # fmt: skip
def test_a_group_with_fewer_cores_than_the_host(
    groups: str, files: dict[str, str], is_confined: bool, tmp_path: Path
) -> None:
    assert confined_to_cores(process(tmp_path, groups, [*V1, *V2], files)) == is_confined


def test_mounts_of_any_name(tmp_path: Path) -> None:
    own = process(tmp_path, "0::/a\n", V2, v1("cpu/a", 150_000))
    with (own / "mountinfo").open("ab") as file:
        file.write(b"99 22 0:9 / /mnt/b\xff rw - tmpfs none rw\n")
    assert control_groups("cpu", own)
