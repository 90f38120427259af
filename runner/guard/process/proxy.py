"""The process that a launcher has started for a rank: it stands for the rank's worker, which is forked elsewhere.

The proxies of a host elect one, by who is first to bind a name. It forks the agent (agent.py), to which each proxy hands over what a
launcher has given it: variables, folder, descriptors, limits. Then a proxy passes signals on, and ends with its rank's exit code. It
imports nothing that this does not need. If the agent is killed, each proxy kills its rank's processes: a launcher sees only proxies.
"""

from __future__ import annotations

import _blake2
import _thread
import contextlib
import errno
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

from runner.guard.process.identity import identity, is_open
from runner.guard.process.wire import process_of, receive, send

# The first end a job; the others inform the program. Both are passed to the worker only: if SIGTERM ended its data
# loaders, a checkpoint on SIGTERM would fail. Its child processes get SIGTERM after it has ended.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
NOTICE_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
_FORWARDED = (*STOP_SIGNALS, *NOTICE_SIGNALS)
_ELECTION_SECONDS = 30.0  # seconds for an agent to take a proxy: it may be importing from a slow file system
_STRANGER_SECONDS = 3.0  # the same where it is not known that it is one: the process that was elected has ended, or another has the name
_RETRY_SECONDS = 0.02  # seconds between two attempts to reach an agent that has bound the name and does not listen yet
EVENT = struct.Struct("=iqi")  # a signal, the process that sent it, and si_code (above 0: the kernel sent it)
_PMI = "PMI_FD"


# Runs the agent; never returns. Arguments: the listening socket for other proxies, the connection to this proxy, and the name under
# which `supervise`'s next launch finds the agent (empty if it must not).
Serve: TypeAlias = Callable[[socket.socket | None, socket.socket, bytes], NoReturn]


def start(serve: Serve) -> NoReturn:
    """Become the proxy of this rank, and perhaps the parent of the host's agent. ``serve`` is called there, and only there."""
    parent = os.getppid()  # before an agent may be waited for: a launcher that ends meanwhile is missed
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    ignored = [number for number in _FORWARDED if signal.getsignal(number) == signal.SIG_IGN]  # nohup, trap ''
    numbers = [number for number in (0, 1, 2) if is_open(number)]
    while (nothing := os.open(os.devnull, os.O_RDWR)) <= 2:  # else a socket would have such a number
        pass
    os.close(nothing)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored a child's exit status is lost
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Until it has joined, a signal ends this process: the agent may be importing from a file system that hangs.
    connection = _join(serve)
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    _hand_over(connection, parent, ignored, numbers)
    _thread.start_new_thread(_forward_signals, (connection,))
    _obey(connection)


def agent_name(what: bytes, number: int = 0) -> bytes:
    """Return an agent's name in the abstract namespace. ``number``: of agents, as one may have no room for all ranks."""
    return b"\0torch-mpi-runner-" + _blake2.blake2b(b"%d" % number + what, digest_size=20).hexdigest().encode()


def _join(serve: Serve) -> socket.socket:
    """A connection to an agent of the host: to one that is there, or to one that is forked now."""
    launch, supervised = identity()
    kept = agent_name(supervised) if supervised else b""
    number, began = 0, time.monotonic()
    while True:
        listener, name = socket.socket(socket.AF_UNIX), agent_name(launch, number)
        try:
            listener.bind(name)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                break
            connection, within, is_full = _reach(name, began)
            if connection is not None:
                return connection
            if is_full:
                number, began = number + 1, time.monotonic()
            elif time.monotonic() > began + within:
                if within:
                    _print(
                        f"this host's agent has not answered for {within:.0f} s, so this rank has an agent of its own"
                    )
                break
            else:
                time.sleep(_RETRY_SECONDS)
            continue
        listener.listen(4096)
        return _renew_agent(listener, kept) or _fork_agent(listener, serve, kept)
    return _fork_agent(None, serve, b"")


def _renew_agent(listener: socket.socket, name: bytes) -> socket.socket | None:
    """Have the agent of the launch before, which is kept by this name, be the agent of this one; None: there is none."""
    connection = _reach(name, time.monotonic())[0] if name else None
    if connection is None:
        return None
    message = {"argv": sys.argv, "orig_argv": sys.orig_argv, "environment": dict(os.environb)}
    try:
        send(connection, message, [listener.fileno()])
    except OSError:  # it has ended
        connection.close()
        return None
    listener.close()
    return connection


def _reach(name: bytes, began: float) -> tuple[socket.socket | None, float, bool]:
    """The agent that has this name, once it has taken this proxy; for how many seconds it may be waited for; whether it has no room.

    None: it does not, or ends. Anybody may have the name: one of another user is not waited for.
    """
    connection, within, is_full = socket.socket(socket.AF_UNIX), _STRANGER_SECONDS, False
    is_connected = False
    try:
        connection.settimeout(within)
        connection.connect(name)
        is_connected = True
        process, user = process_of(connection)  # that was elected
        within = 0.0 if user != os.geteuid() else _ELECTION_SECONDS if _is_sibling(process) else _STRANGER_SECONDS
        if within:
            connection.settimeout(max(_RETRY_SECONDS, began + within - time.monotonic()))
            if (answer := receive(connection)) is not None:
                if "agent" in answer[0]:
                    connection.settimeout(None)
                    return connection, within, False
                is_full = True
    except TimeoutError:
        if not is_connected:  # somebody listens, and has more to take than it may let wait
            within = _ELECTION_SECONDS
    except OSError:
        pass
    connection.close()
    return None, within, is_full


def _is_sibling(process: int) -> bool:
    """Whether the launcher's process that has started this one has started that one, too."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{process}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1]) == os.getppid()
    return False


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # it was closed
        os.write(2, f"runner: {text}\n".encode(errors="replace"))


def _fork_agent(listener: socket.socket | None, serve: Serve, kept: bytes) -> socket.socket:
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        serve(listener, theirs, kept)
    theirs.close()
    if listener is not None:
        listener.close()
    receive(ours)
    return ours


def _hand_over(connection: socket.socket, parent: int, ignored: Sequence[int], numbers: list[int]) -> None:
    """Hand the agent what the launcher has given this process.

    It keeps all of it open itself: Hydra takes the end of its connection to PMI for a crash unless the process ends with it.
    """
    pmi = os.environ.get(_PMI, "")
    if pmi.isdecimal() and int(pmi) > 2 and is_open(int(pmi)):
        numbers.append(int(pmi))
    umask = os.umask(0)
    os.umask(umask)
    message = {
        "process": os.getpid(),
        "parent": parent,
        "group": os.getpgrp(),
        "environment": dict(os.environb),
        "umask": umask,
        "affinity": sorted(os.sched_getaffinity(0)),
        "ignored": [int(number) for number in ignored],
        "numbers": numbers,
    }
    end = time.monotonic() + _ELECTION_SECONDS
    while True:
        try:
            send(connection, message, numbers)
        except (BrokenPipeError, ConnectionResetError):  # the agent has ended, which is seen next
            return
        except OSError as error:
            # So many of this user's descriptors are on their way at a time as a process may have open.
            if error.errno != errno.ETOOMANYREFS or time.monotonic() > end:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def _forward_signals(connection: socket.socket) -> None:
    """Send the agent every signal to this process, with its sender, which a signal handler would not know."""
    while True:
        received = signal.sigwaitinfo(_FORWARDED)
        try:
            connection.sendall(EVENT.pack(received.si_signo, received.si_pid, received.si_code))
        except OSError:
            return  # the other thread sees it, too


def _obey(connection: socket.socket) -> NoReturn:
    """Do what the agent tells, until it tells the exit code."""
    worker: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        while (received := receive(connection)) is not None:
            told, _ = received
            if "exit" in told:
                if why := told.get("why"):
                    _print(why)
                os._exit(told["exit"])
            worker = told
    _end_after_agent(worker)


def _end_after_agent(worker: dict[str, Any]) -> NoReturn:
    """The agent was killed, and its importer and workers with it, by the kernel: end what the worker has started."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)  # a file system that hangs is not to hold this process up
    if worker:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if worker["leads"] else os.kill)(worker["process"], signal.SIGKILL)
    label = f"{worker['label']}: " if worker else ""
    _print(f"{label}the runner's agent on this host has ended, perhaps killed by SIGKILL, so this rank ends too")
    if worker and worker["failure"]:
        import json

        path, failure = worker["failure"]
        # Another host's agent may have written it.
        with contextlib.suppress(OSError), open(path, "x", encoding="utf-8") as file:
            json.dump(failure | {"time": time.time()}, file, indent=1)
    os._exit(1)
