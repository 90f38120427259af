"""A file, or a folder with all that is in it, as entries; and its content in pieces, read by several threads and written by one.

A copy has the modes and times of its source. So Python takes the compiled files of a copied environment, and a later copy can tell
which files have changed.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from runner.base.errors import UsageError

PIECE_BYTES = 4 << 20
_THREADS = 8  # a parallel file system answers them at once


class Entry(NamedTuple):
    """A file, folder or symbolic link.

    Attributes:
        path: within the tree, "" for its top.
        mode: type and permissions, as stat() gives them.
        size: bytes of a file, else 0.
        time: of its last change, in nanoseconds; 0 for a link.
        link: the target of a symbolic link.
    """

    path: str
    mode: int
    size: int
    time: int
    link: str = ""

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


class Part(NamedTuple):
    """Some bytes of a file: the index of its entry, and where they lie."""

    entry: int
    offset: int
    length: int


class FilePiece(NamedTuple):
    """Parts of files, and their bytes, one after the other."""

    parts: Sequence[Part]
    content: bytes


def entries_of(top: Path) -> list[Entry]:
    """Return all entries of a tree, folders before what is in them, in an order that is always the same.

    Raises:
        UsageError: something cannot be read, or is neither file, folder nor link.
    """
    found = [_entry(top, "")]
    with ThreadPoolExecutor(_THREADS) as pool:
        folders = [""] if stat.S_ISDIR(found[0].mode) else []
        while folders:
            below = [entry for listed in pool.map(lambda name: _listed(top, name), folders) for entry in listed]
            found += below
            folders = [entry.path for entry in below if stat.S_ISDIR(entry.mode)]
    return sorted(found)


def top_of(top: Path, depth: int = 3) -> list[Entry]:
    """Return the entries of the top and of the folders near it, to ``lib/python3.11/site-packages``, with the files of the first two levels."""
    found, folders = [_entry(top, "")], [""]
    for level in range(depth if stat.S_ISDIR(found[0].mode) else 0):
        below = [(os.path.join(folder, one.name), one) for folder in folders for one in _scanned(top / folder)]
        names = {name for name, one in below if one.is_dir(follow_symlinks=False)}
        found += [_entry(top, name) for name, _ in below if level < 2 or name in names]
        folders = sorted(names)
    return sorted(found)


def _scanned(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError as error:
        raise UsageError(f"{folder} cannot be staged: {error.strerror}") from None


def digest_of(entries: Sequence[Entry]) -> str:
    """A name for this state of the tree."""
    return hashlib.blake2b("\n".join(map(repr, entries)).encode(errors="surrogateescape"), digest_size=10).hexdigest()


def missing_in(entries: Sequence[Entry], copy: Path | None) -> list[int]:
    """Return the indices of the files that an older copy does not have as they are now."""
    return [n for n, entry in enumerate(entries) if entry.is_file and not (copy and _is_same(entry, copy))]


def pieces_of(top: Path, entries: Sequence[Entry], wanted: Collection[int]) -> Iterator[FilePiece]:
    """Read files, several pieces ahead.

    Raises:
        UsageError: a file cannot be read, or has changed since it was listed.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        ahead: collections.deque[Future[FilePiece]] = collections.deque()
        try:
            for parts in _portions(entries, wanted):
                ahead.append(pool.submit(_read, top, entries, parts))
                if len(ahead) >= 2 * _THREADS:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


class Copy:
    """A copy that is being written."""

    def __init__(
        self,
        top: Path,
        entries: Sequence[Entry],
        older: Path | None,
        missing: Collection[int],
        *,
        repairs: bool = False,
    ) -> None:
        """Make folders and links, and take from an older copy the files that have not changed.

        Args:
            repairs: the copy is there, and lacks something.

        Raises:
            UsageError: there is no room, or no right to write.
        """
        self.top, self._entries = top, entries
        self._file, self._open = -1, -1  # the entry that is being written, and its descriptor
        self._missing = set(missing)
        with _writing(top):
            found = entries_of(top) if repairs else ()
            for added in {entry.path for entry in found} - {entry.path for entry in entries}:
                remove(top / added)
            for number, entry in enumerate(entries):
                if stat.S_ISDIR(entry.mode):
                    (top / entry.path).mkdir(mode=0o700, exist_ok=repairs)
                    (top / entry.path).chmod(0o700)
                elif repairs and (stat.S_ISLNK(entry.mode) or number in self._missing):
                    (top / entry.path).unlink(missing_ok=True)
                if stat.S_ISLNK(entry.mode):
                    (top / entry.path).symlink_to(entry.link)
                elif entry.is_file and older is not None and number not in self._missing:
                    os.link(older / entry.path, top / entry.path)

    def write(self, piece: FilePiece) -> None:
        """Write those parts of a piece that are missing here. Pieces come in the order in which ``pieces_of`` reads them.

        Raises:
            UsageError: there is no room.
        """
        at = 0
        with _writing(self.top):
            for part in piece.parts:
                entry, path = self._entries[part.entry], self.top / self._entries[part.entry].path
                if part.entry not in self._missing:
                    at += part.length
                    continue
                if part.entry != self._file:
                    self._file, self._open = part.entry, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                rest = memoryview(piece.content)[at : at + part.length]
                at += part.length
                while rest:
                    rest = rest[os.write(self._open, rest) :]
                if part.offset + part.length == entry.size:
                    os.fchmod(self._open, stat.S_IMODE(entry.mode))
                    os.utime(self._open, ns=(entry.time, entry.time))
                    os.close(self._open)
                    self._file = -1

    def finish(self) -> None:
        """Give the folders their modes and times.

        Raises:
            UsageError: something else has changed them.
        """
        with _writing(self.top):
            for entry in reversed(self._entries):
                if stat.S_ISDIR(entry.mode):
                    os.chmod(self.top / entry.path, stat.S_IMODE(entry.mode))
                    os.utime(self.top / entry.path, ns=(entry.time, entry.time))


def remove(top: Path) -> None:
    """Remove a copy, also folders that may not be written."""
    for folder, names, files in os.walk(top):
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
        for name in (*files, *(name for name in names if os.path.islink(os.path.join(folder, name)))):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    with contextlib.suppress(OSError):
        top.unlink()


def _listed(top: Path, name: str) -> list[Entry]:
    try:
        return [_entry(top, os.path.join(name, below)) for below in os.listdir(top / name)]
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be staged: {error.strerror}") from None


def _entry(top: Path, name: str) -> Entry:
    path = top / name
    try:
        state = path.lstat()
        link = os.readlink(path) if stat.S_ISLNK(state.st_mode) else ""
    except OSError as error:
        raise UsageError(f"{path} cannot be staged: {error.strerror}") from None
    if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode) or link):
        raise UsageError(f"{path} cannot be staged: it is neither file, folder nor link", fix="name what is beside it")
    size = state.st_size if stat.S_ISREG(state.st_mode) else 0
    mode = state.st_mode & ~(stat.S_ISUID | stat.S_ISGID)  # a copy has another owner
    return Entry(name, mode, size, 0 if link else state.st_mtime_ns, link)


def _is_same(entry: Entry, copy: Path) -> bool:
    with contextlib.suppress(OSError, UsageError):
        return _entry(copy, entry.path) == entry
    return False


def _portions(entries: Sequence[Entry], wanted: Collection[int]) -> Iterator[list[Part]]:
    parts: list[Part] = []
    room = PIECE_BYTES
    for number in sorted(wanted):
        offset, size = 0, entries[number].size
        while True:
            length = min(room, size - offset)
            parts.append(Part(number, offset, length))
            offset, room = offset + length, room - length - 512  # so that empty files fill a piece, too
            if room <= 0:
                yield parts
                parts, room = [], PIECE_BYTES
            if offset == size:
                break
    if parts:
        yield parts


def _read(top: Path, entries: Sequence[Entry], parts: Sequence[Part]) -> FilePiece:
    content = bytearray()
    for part in parts:
        entry = entries[part.entry]
        path = top / entry.path
        try:
            # What has become a pipe does not hold this thread, and is of another size or time.
            with open(path, "rb", buffering=0, opener=_open_at_once) as file:
                left = part.length
                while left and (read := os.pread(file.fileno(), left, part.offset + part.length - left)):
                    content += read
                    left -= len(read)
                state = os.fstat(file.fileno())
        except OSError as error:
            raise UsageError(f"{path} cannot be staged: {error.strerror}") from None
        if left or (state.st_size, state.st_mtime_ns) != (entry.size, entry.time):
            raise UsageError(f"{path} has changed while it was copied", fix="stage it when nothing writes there")
    return FilePiece(parts, bytes(content))


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


@contextlib.contextmanager
def _writing(top: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{error.filename or top} cannot be written: {error.strerror}",
            fix="name another folder with --to or --stage-to",
        ) from None
