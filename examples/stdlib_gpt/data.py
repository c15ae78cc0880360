"""The sources of Python's standard library as one memory-mapped file of byte tokens.

A packed file is a 64-byte header and then one byte a token; every source file ends with a zero byte, which no Python
source contains. The files of the training split come first, those of the validation split after them.

    offset  bytes  content
    0       8      magic, b"BYTETOK1"
    8       8      number of tokens, little endian
    16      8      how many of them are the training split, little endian
    24      32     BLAKE2b digest of the tokens
    56      8      zeros

What it does not know: batches, order and workers. Those are the Session's.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sysconfig
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

MAGIC = b"BYTETOK1"
HEADER = struct.Struct("<8sQQ32s8x")
SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
VALIDATION_ONE_IN = 16  # of the files
MAX_BYTES = 32 * 2**20


class PackedFileError(ValueError):
    """A packed file is not what its header says; the message names the file and the remedy."""


def pack(path: Path, sources: Path | None = None) -> Path:
    """Write the packed file unless it is there, and return its path.

    Safe in several processes at once: each writes a file of its own and renames it into place, so that a reader
    sees a complete file or none. `sources` is the folder to pack, by default this interpreter's standard library.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    training, validation = _read_split(sources or Path(sysconfig.get_path("stdlib")))
    digest = hashlib.blake2b(training, digest_size=32)
    digest.update(validation)
    header = HEADER.pack(MAGIC, len(training) + len(validation), len(training), digest.digest())
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with open(descriptor, "wb") as file:
            file.writelines((header, training, validation))
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


class Windows(Dataset[Tensor]):
    """Windows of `context` + 1 bytes: `context` inputs and, shifted by one, their targets.

    An item is an int64 tensor of shape (context + 1,). Windows follow one another and share one byte, so that every
    byte but the first is predicted once a pass. Raises PackedFileError where the file is damaged.
    """

    def __init__(self, path: Path, split: Literal["training", "validation"], *, context: int) -> None:
        count, training = _check(path)
        everything = torch.from_file(str(path), shared=False, size=HEADER.size + count, dtype=torch.uint8)
        tokens = everything[HEADER.size :]
        self.tokens = tokens[:training] if split == "training" else tokens[training:]
        self.context = context
        if len(self) < 1:
            raise PackedFileError(f"{path}: the {split} split has {len(self.tokens)} tokens, too few for a window")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * self.context
        return self.tokens[start : start + self.context + 1].long()

    def unigram_entropy(self) -> float:
        """Nats a byte that the best guess without any context costs: a model below it uses what came before."""
        counts = torch.bincount(self.tokens, minlength=256).double()
        shares = counts[counts > 0] / counts.sum()
        return float(-(shares * shares.log()).sum())


def _read_split(root: Path) -> tuple[bytes, bytes]:
    training, validation = bytearray(), bytearray()
    for name, file in _source_files(root):
        if len(training) + len(validation) >= MAX_BYTES:
            break
        # By the name alone: the split stays as it is when files come or go.
        part = validation if zlib.crc32(name.encode()) % VALIDATION_ONE_IN == 0 else training
        part += file.read_bytes() + b"\0"
    if not training and not validation:
        raise FileNotFoundError(f"{root} holds no Python source to pack")
    return bytes(training), bytes(validation)


def _source_files(root: Path) -> Iterator[tuple[str, Path]]:
    names = (path.relative_to(root) for path in root.rglob("*.py"))
    for name in sorted(name.as_posix() for name in names if SKIPPED.isdisjoint(name.parts)):
        yield name, root / name


def _check(path: Path) -> tuple[int, int]:
    """Number of tokens and of training tokens, after the whole file was compared with its header."""
    remedy = "delete it and start again"
    with open(path, "rb") as file:
        header = file.read(HEADER.size)
        if len(header) < HEADER.size or not header.startswith(MAGIC):
            raise PackedFileError(f"{path} is not a packed token file (its header is wrong); {remedy}")
        _, count, training, expected = HEADER.unpack(header)
        held = os.fstat(file.fileno()).st_size - HEADER.size
        if held != count or training > count:
            raise PackedFileError(f"{path} holds {held} tokens and its header says {count}; {remedy}")
        digest = hashlib.blake2b(digest_size=32)
        while chunk := file.read(2**20):
            digest.update(chunk)
    if digest.digest() != expected:
        raise PackedFileError(f"{path}: the checksum of its tokens is not the one in its header; {remedy}")
    return count, training
