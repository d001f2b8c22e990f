"""The clients' own ids that the processes of a gateway have in flight, in memory that all of them share.

Owns: whether an id of this process can clash with one of another. Must never enter: the ids of this process
among themselves, private ids.

No process waits for another. Each writes hashes to a segment of its own and reads those of the others: it
writes first, then reads, with a memory fence between the two. So of two processes that take clashing ids at
the same time at least one finds the other's, and gives its own up. Whatever cannot be excluded is a clash.

Ids clash if they are equal or one is a prefix of the other, as an engine may match by prefix. For each id a
segment has the hash of all of it, and those of its prefixes of the lengths that ids have had so far. A new id
is a prefix of another one if its hash is among the prefixes; it extends another one if the hash of one of its
prefixes is that of an id. For that, all processes must use the same lengths: each has a set of them in its
segment, adopts those of the others, and adds a length only once the prefixes of its ids are there.

Hashes are those of ``str``, which are the same in all processes, as these are forked and not started anew.
"""

from __future__ import annotations

import asyncio
import mmap
import threading
from collections.abc import Iterable

from gateway.proxy.aborts import LINGER

#: Longest id, in characters.
MAX_LENGTH = 255
#: Different lengths that are used; each costs a hash for a longer id.
MAX_LENGTHS = 64
#: Ids of one request. All are checked at once, in about 2 us each.
MAX_NAMES = 1024
#: Seconds between two looks for lengths of others, by a process without new requests.
ADOPT_INTERVAL = 0.25

#: A segment: the set of lengths (a bit for each), whether there are ids, and buckets of entries, 1 MiB in
#: all. An entry never moves while it is there, so that a reader cannot miss it.
_LENGTHS, _IN_USE, _HEADER = 32, 32, 64
_BUCKETS, _BUCKET, _ENTRY = 1 << 14, 64, 8
_SEGMENT = _HEADER + _BUCKETS * _BUCKET
_FREE = bytes(_ENTRY)
#: The last bits of an entry: the hash of an id, or of the prefix of one. No entry looks free.
_ID, _PREFIX = 1, 2


class IdTable:
    """The memory of ``processes`` processes, which must be forked after it was made."""

    def __init__(self, processes: int) -> None:
        self._memory = mmap.mmap(-1, processes * _SEGMENT)
        self._processes = processes

    def of(self, process: int) -> ProcessIds:
        """Return the part of the process with this number, which replaces the one that had it before."""
        starts = [number * _SEGMENT for number in range(self._processes)]
        return ProcessIds(self._memory, starts.pop(process), starts)


class ProcessIds:
    """The ids of this process, as the others see them, and theirs as this one sees them.

    ``start`` is where the segment of this process is in ``memory``, ``others`` where theirs are.
    """

    def __init__(self, memory: mmap.mmap, start: int, others: list[int]) -> None:
        self._memory = memory
        self._start = start
        self._others = others
        #: Lengths in ascending order, and as they are in the segment.
        self._lengths: list[int] = []
        self._mask = b""
        self._read_own_lengths()
        #: The entries of each id in flight.
        self._names: dict[str, list[int]] = {}
        #: Where each entry is, and how many ids have it: prefixes are shared.
        self._entries: dict[int, list[int]] = {}
        #: Entries of a process that died. Engines may go on with its requests for LINGER seconds.
        self._left_behind = self._used_slots() if memory[start + _IN_USE] else []
        self._fence_lock = threading.Lock()
        self._fence_lock.acquire()

    def claim(self, names: tuple[str, ...]) -> bool:
        """Take ``names`` until ``release``; return False if ids of other processes may clash with them.

        None of them clashes with another one of this process.
        """
        if self._left_behind or len(names) > MAX_NAMES:
            return False
        lengths = {len(name) for name in names}
        seen = self._adopt()
        if not lengths.issubset(self._lengths) and not self._add_lengths(lengths):
            return False
        self._memory[self._start + _IN_USE] = 1
        written = all([self._write(name) for name in names])
        self._fence()
        if written and not self._may_clash(names, lengths, seen):
            return True
        self.release(names)
        return False

    def release(self, names: Iterable[str]) -> None:
        """Give ``names`` back. Raises KeyError for one that was not taken."""
        for name in names:
            for entry in self._names.pop(name):
                self._remove(entry)
        if not self._names:
            self._memory[self._start + _IN_USE] = 0

    async def keep_up(self) -> None:
        """Adopt the lengths of other processes, and forget a predecessor's ids in time, until cancelled."""
        if self._left_behind:
            await asyncio.sleep(LINGER)
            self.forget_predecessor()
        while True:
            self._adopt()
            await asyncio.sleep(ADOPT_INTERVAL)

    def forget_predecessor(self) -> None:
        """Remove what a process that died had in flight."""
        for at in self._left_behind:
            self._memory[at : at + _ENTRY] = _FREE
        self._left_behind = []
        self._memory[self._start + _IN_USE] = 0

    # -- what the others have

    def _may_clash(self, names: tuple[str, ...], lengths: set[int], seen: list[bytes]) -> bool:
        """Return True unless it is certain that no other process has an id that clashes with ``names``."""
        sought: list[tuple[bytes, int]] = []
        for start, mask in zip(self._others, seen, strict=True):
            if not self._memory[start + _IN_USE]:
                continue
            if self._lengths_at(start) != mask or not self._comparable(mask, lengths):
                return True
            for entry, at in sought or (sought := self._clashing_entries(names)):
                if self._memory.find(entry, start + at, start + at + _BUCKET) >= 0:
                    return True
        return False

    def _comparable(self, mask: bytes, lengths: set[int]) -> bool:
        """Return True if a process with the lengths ``mask`` has the prefixes of ``lengths``, and no id of a
        length that is unknown here."""
        return mask == self._mask or lengths <= {*_lengths_of(mask)} <= {*self._lengths}

    def _clashing_entries(self, names: tuple[str, ...]) -> list[tuple[bytes, int]]:
        """Return the entries of ids that clash with ``names``, each with where its bucket is in a segment."""
        entries = []
        for name in names:
            length = len(name)
            entries.append(_entry(name, _ID))
            entries += [_entry(name[:each], _ID) for each in self._lengths if each < length]
            if self._lengths[-1] > length:
                entries.append(_entry(name, _PREFIX))
        return [(_bytes(entry), _bucket(entry)) for entry in entries]

    # -- lengths

    def _lengths_at(self, start: int) -> bytes:
        return self._memory[start : start + _LENGTHS]

    def _adopt(self) -> list[bytes]:
        """Add the lengths of the other processes; return those."""
        masks = [self._lengths_at(start) for start in self._others]
        for mask in masks:
            if mask != self._mask:
                self._add_lengths({*_lengths_of(mask)}, adopted=True)
        return masks

    def _add_lengths(self, lengths: set[int], *, adopted: bool = False) -> bool:
        """Use ``lengths`` from now on; return False if that is not possible."""
        new = lengths.difference(self._lengths)
        if self._left_behind or not new:
            return not new
        if max(new) > MAX_LENGTH or not adopted and len(self._lengths) + len(new) > MAX_LENGTHS:
            return False
        for name in self._names:
            if not all([self._add(name, length) for length in new if length < len(name)]):
                return False
        self._fence()  # who sees the length has to see the prefixes
        bits = int.from_bytes(self._mask, "little") | sum(1 << length for length in new)
        self._memory[self._start : self._start + _LENGTHS] = bits.to_bytes(_LENGTHS, "little")
        self._read_own_lengths()
        return True

    def _read_own_lengths(self) -> None:
        self._mask = self._lengths_at(self._start)
        self._lengths = _lengths_of(self._mask)

    # -- the segment of this process

    def _write(self, name: str) -> bool:
        """Write the entries of ``name``; return False if there is no room for one."""
        self._names[name] = []
        return all([self._add(name, length) for length in self._lengths if length <= len(name)])

    def _add(self, name: str, length: int) -> bool:
        kind = _ID if length == len(name) else _PREFIX
        entry = _entry(name[:length], kind)
        known = self._entries.get(entry)
        if known is not None:
            known[1] += 1
        else:
            at = self._free_slot(entry)
            if at is None:
                return False
            self._memory[at : at + _ENTRY] = _bytes(entry)
            self._entries[entry] = [at, 1]
        self._names[name].append(entry)
        return True

    def _remove(self, entry: int) -> None:
        known = self._entries[entry]
        known[1] -= 1
        if not known[1]:
            at = known[0]
            self._memory[at : at + _ENTRY] = _FREE
            del self._entries[entry]

    def _free_slot(self, entry: int) -> int | None:
        bucket = self._start + _bucket(entry)
        for at in range(bucket, bucket + _BUCKET, _ENTRY):
            if self._memory[at : at + _ENTRY] == _FREE:
                return at
        return None

    def _used_slots(self) -> list[int]:
        slots = range(self._start + _HEADER, self._start + _SEGMENT, _ENTRY)
        return [at for at in slots if self._memory[at : at + _ENTRY] != _FREE]

    def _fence(self) -> None:
        """Keep the processor from reading later what follows, before what was written is visible.

        The release of a lock is a release operation and its acquisition an acquire operation, which x86 and
        ARM keep in this order, and with them what stands before the one and after the other.
        """
        self._fence_lock.release()
        self._fence_lock.acquire()


def _entry(text: str, kind: int) -> int:
    return hash(text) & ~3 | kind


def _bucket(entry: int) -> int:
    return _HEADER + ((entry >> 2) & (_BUCKETS - 1)) * _BUCKET


def _bytes(entry: int) -> bytes:
    return entry.to_bytes(_ENTRY, "little", signed=True)


def _lengths_of(mask: bytes) -> list[int]:
    bits = int.from_bytes(mask, "little")
    return [length for length in range(bits.bit_length()) if bits >> length & 1]
