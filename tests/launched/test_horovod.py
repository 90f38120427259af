"""Real Horovod: built for this torch and this MPI, as strategy, in its own scripts, and started by its own launcher."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from tests.launching import (
    BASE_PYTHON,
    ROOT,
    RUNNER,
    folder_of,
    free_port,
    mpirun,
    ok,
    own_lines,
    packages_without,
    path_of,
    run,
    runner,
    torchrun_command,
    warnings_of,
)
from tests.results import losses, refused
from tests.turns import Turns

SCRIPT = path_of("horovod_training")
BIN = Path(sys.executable).parent
HOROVODRUN = [str(BIN / "horovodrun"), "-np", "2"]
PATH = {"PATH": f"{BIN}:/usr/bin:/bin:/usr/sbin:/sbin"}
SHORT = ["--data", "digits", "--dtype", "float64"]


def test_a_workload_that_imports_it_first() -> None:
    done = ok(runner(2, "--rendezvous", "file", "horovod_imported_first", cwd=folder_of("horovod_imported_first")))
    assert done.stdout == "2 ranks\n"


@pytest.mark.needs("compare")
def test_compare_by_it(tmp_path: Path) -> None:
    options = ["--steps", "4", "--rounds", "2", "--engines", "ddp:gloo,horovod", "--json", "found"]
    ok(runner(2, "--rendezvous", "file", "compare", "workloads.linear", "--dtype", "float64", *options, cwd=tmp_path))
    engines = json.loads((tmp_path / "found").read_text())["engines"]
    assert [engine["engine"] for engine in engines] == ["ddp:gloo", "horovod", "alone"]
    assert engines[1]["ranks_agree"]
    assert engines[1]["distance"] < 1e-12


def test_bench_by_it(tmp_path: Path) -> None:
    names = ["allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "sendrecv"]
    options = ["--backend", "horovod,mpi4py", "--min", "4K", "--max", "4K", "--rounds", "1", "--json", "found"]
    ok(runner(2, "bench", *names, *options, cwd=tmp_path))
    found = [json.loads(line) for line in (tmp_path / "found").read_text().splitlines()]
    assert [m["operation"] for m in found if m["backend"] == "horovod"] == names[:-1]  # it has no sendrecv
    assert {m["wrong"] for m in found} == {0}


@pytest.mark.parametrize("way", ["mpi", "file", "env"])
def test_its_own_scripts_run_unmodified(way: str) -> None:
    """By the MPI that started them; without one by Horovod's gloo, which the runner tells where to meet."""
    endpoint = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if way == "env" else {}
    done = ok(runner(2, "--rendezvous", way, SCRIPT, **endpoint))
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 2, local {rank} of 2: same True" for rank in range(2)]
    assert not warnings_of(done)


def test_strangers_at_its_rendezvous_server_end_nothing() -> None:
    done = ok(runner(2, "--rendezvous", "file", path_of("horovod_among_strangers")))
    ranks = [f"rank {rank} of 2: [1.0, 1.0]" for rank in range(2)]
    assert sorted(done.stdout.splitlines()) == ["listens on 127.0.0.1", *ranks]
    assert not warnings_of(done)


def test_its_rendezvous_server_lets_in_the_addresses_that_hosts_have_sent() -> None:
    """A server on all addresses, as for several hosts, and visitors from three addresses of this one."""
    from datetime import timedelta

    from torch._C._distributed_c10d import HashStore

    from runner.backends.horovod.rendezvous import members
    from runner.backends.horovod.server import serve

    store = HashStore()
    store.set_timeout(timedelta(seconds=5))
    server = serve([], False, members(store, 2))

    def is_let_in(source: str) -> bool:
        with socket.create_connection(("127.0.0.1", server.server_port), 30, (source, 0)) as visitor:
            try:
                visitor.sendall(b"GET /global/0 HTTP/1.1\r\n\r\n")
                return b" 404 " in visitor.recv(1 << 16)
            except ConnectionError:
                return False

    try:
        assert not is_let_in("127.0.0.2")
        store.set("horovod 1", "127.0.0.9 127.0.0.2")
        assert is_let_in("127.0.0.2")
        assert not is_let_in("127.0.0.3")
        store.set("horovod 0", "127.0.0.3")
        assert is_let_in("127.0.0.3")
        assert not is_let_in("127.0.0.4")
    finally:
        server.shutdown()
        server.server_close()


STARTED = {
    "horovodrun by MPI": [*HOROVODRUN, "--mpi", *RUNNER],
    "the launch script by gloo": ["bash", str(ROOT / "mpi_scripts" / "horovodrun.sh")],
    "torchrun": torchrun_command(2, *RUNNER[1:]),
}


@pytest.mark.parametrize("words", STARTED.values(), ids=STARTED)
def test_the_strategy_under_other_launchers(words: list[str], tmp_path: Path) -> None:
    target = ["workloads.linear", "--strategy", "horovod", "--max-steps", "5", "--checkpoint-dir", str(tmp_path)]
    done = ok(run(*words, *target, cwd=ROOT, RANKS="2", PYTHON=sys.executable, **PATH))
    assert done.stdout.count("done: 5 steps") == 1


def test_a_rank_that_fails_ends_the_job() -> None:
    done = runner(2, path_of("horovod_fails"))
    assert done.returncode == 1
    assert any("rank 1 of 2" in line and "no more data" in line for line in own_lines(done))


def test_without_it_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    packages = packages_without("horovod", tmp_path / "packages")
    job = ["-m", "runner", "workloads.linear", "--strategy", "horovod"]
    done = mpirun(2, BASE_PYTHON, *job, cwd=tmp_path, PYTHONPATH=packages)
    refused(done, "runner: Horovod is not installed; make horovod builds and installs it")


# What follows takes turns in one job. It is last, as the job ends with the file, and until then Horovod's threads poll MPI.
OPTIONS = {"plain": [], "in parts": ["--micro-batches", "4"], "fp16": ["--comm-hook", "fp16"]}
STRATEGIES = ("ddp", "horovod")


@pytest.fixture(scope="module")
def trained(turns: Turns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with some steps by each strategy: of mnist with each of the options, and with weight decay."""
    folder = tmp_path_factory.mktemp("trained")
    trainings = {name: ["workloads.mnist", *SHORT, "--max-steps", "20", *options] for name, options in OPTIONS.items()}
    decay = ["--optimizer", "AdamW", "--decay", "5", "--net", "linear", "--batch-size", "8"]
    trainings["decay"] = ["resumable", *decay, "--dtype", "float64", "--max-steps", "5"]
    for strategy in STRATEGIES:
        for name, training in trainings.items():
            ok(turns(2, *training, "--strategy", strategy, "--checkpoint-dir", str(folder / strategy / name)))
    return folder


@pytest.mark.parametrize("name", OPTIONS)
def test_the_strategy_gives_what_ddp_gives(name: str, trained: Path) -> None:
    # Half precision has 11 bits, and the two round in different places.
    tolerance = 1e-2 if name == "fp16" else 1e-5
    assert losses(trained / "horovod" / name) == pytest.approx(losses(trained / "ddp" / name), rel=tolerance)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_accumulated_over_parts_are_those_of_the_batch(strategy: str, trained: Path) -> None:
    whole, in_parts = (losses(trained / strategy / name) for name in ("plain", "in parts"))
    assert in_parts == pytest.approx(whole, rel=1e-9 if strategy == "ddp" else 1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_compression_is_used(strategy: str, trained: Path) -> None:
    assert losses(trained / strategy / "fp16") != losses(trained / strategy / "plain")


def test_weight_decay_moves_the_weights_no_more_than_under_ddp(trained: Path) -> None:
    assert losses(trained / "horovod" / "decay") == pytest.approx(losses(trained / "ddp" / "decay"), rel=1e-9)


@pytest.mark.parametrize("more", ["", "--micro-batches 2", "--micro-batches 2 --clip-norm 0.05"])
@pytest.mark.parametrize("case", ["tokens", "means"])
def test_losses_with_weights_give_what_ddp_gives(case: str, more: str, turns: Turns, tmp_path: Path) -> None:
    """Ranks have different numbers of tokens, and of the last batch fewer samples than usual, or one rank has none."""
    options = [f"--case={case}", "--dtype=float64", "--global-batch-size=16", "--lr=0.01", *more.split()]
    for samples in ("85", "81"):
        for strategy in STRATEGIES:
            here = f"--checkpoint-dir={tmp_path}/{strategy}/{samples}"
            kept = ["--keep-last", f"--samples={samples}", "--epochs=2", f"--strategy={strategy}", here]
            ok(turns(2, "tree_batches", *options, *kept))
        horovod, ddp = (losses(tmp_path / strategy / samples) for strategy in ("horovod", "ddp"))
        assert len(ddp) == 12
        assert horovod == pytest.approx(ddp, rel=1e-9)


def test_a_training_by_one_strategy_goes_on_by_the_other(turns: Turns, tmp_path: Path) -> None:
    by = {"a": ("ddp", "horovod"), "b": ("horovod", "ddp"), "c": ("ddp", "ddp")}
    for part, more in enumerate((["--epochs", "2"], ["--epochs", "4", "--resume"])):
        for folder, strategies in by.items():
            options = ["--strategy", strategies[part], "--checkpoint-dir", str(tmp_path / folder), *more]
            ok(turns(2, "workloads.linear", "--dtype", "float64", *options))
    assert len(losses(tmp_path / "c")) == 4 * 32
    assert losses(tmp_path / "a") == pytest.approx(losses(tmp_path / "c"), rel=1e-9)
    assert losses(tmp_path / "b") == pytest.approx(losses(tmp_path / "c"), rel=1e-9)


def test_what_is_evaluated_is_what_is_saved(turns: Turns, tmp_path: Path) -> None:
    """Running statistics differ between ranks in training; by DDP each step begins with rank 0's, by Horovod none."""
    options = ["--net", "norm", "--checkpoint-dir", str(tmp_path), "--epochs", "2", "--log-every", "1"]
    ok(turns(2, "resumable", *options, "--batch-size", "8", "--strategy", "horovod"))
    reported = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["val_loss"]
    done = ok(turns(1, "resumable", *options, "--resume"))
    assert f"(test loss {reported:.4g})" in done.stdout
