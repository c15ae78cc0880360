from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples.stdlib_gpt.data import HEADER, PackedFileError, Windows, pack

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Forty small files, so that both splits get some, and three folders that must not be packed."""
    root = tmp_path / "sources"
    for number in range(40):
        file = root / f"package{number % 4}" / f"module{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"answer = {number}\n" * (number + 1))
    for skipped in ("site-packages", "test", "package0/tests"):
        (root / skipped).mkdir(parents=True)
        (root / skipped / "other.py").write_text("~" * 100)
    return root


def tokens(path: Path, split: str) -> bytes:
    return bytes(Windows(path, split, context=8).tokens.tolist())  # type: ignore[arg-type]


def test_every_file_is_in_exactly_one_split_and_skipped_folders_in_none(tmp_path: Path, sources: Path) -> None:
    path = pack(tmp_path / "cache" / "packed.bytes", sources)
    documents = [tokens(path, split).split(b"\0")[:-1] for split in ("training", "validation")]
    assert all(documents)
    expected = [file.read_bytes() for file in sources.rglob("module*.py")]
    assert sorted(documents[0] + documents[1]) == sorted(expected)


def test_packing_again_gives_the_same_bytes(tmp_path: Path, sources: Path) -> None:
    assert pack(tmp_path / "a", sources).read_bytes() == pack(tmp_path / "b", sources).read_bytes()


def test_a_packed_file_is_left_alone(tmp_path: Path, sources: Path) -> None:
    path = pack(tmp_path / "packed.bytes", sources)
    before = path.stat()
    pack(path, tmp_path / "no such folder")
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_windows_predict_every_byte_but_the_first_once(tmp_path: Path, sources: Path) -> None:
    path = pack(tmp_path / "packed.bytes", sources)
    windows = Windows(path, "training", context=8)
    items = [windows[index] for index in range(len(windows))]
    assert all(item.shape == (9,) and item.dtype == torch.int64 for item in items)
    targets = torch.cat([item[1:] for item in items])
    assert bytes(targets.tolist()) == tokens(path, "training")[1 : 1 + 8 * len(windows)]
    assert len(windows.tokens) - len(targets) <= 8
    for outside in (-1, len(windows)):
        with pytest.raises(IndexError):
            windows[outside]


def test_unigram_entropy(tmp_path: Path) -> None:
    root = tmp_path / "sources"
    root.mkdir()
    (root / "one.py").write_text("aab" * 5)  # with the closing zero: 10 a, 5 b, 1 zero
    windows = Windows(pack(tmp_path / "packed.bytes", root), "training", context=4)
    expected = -sum(share * math.log(share) for share in (10 / 16, 5 / 16, 1 / 16))
    assert windows.unigram_entropy() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("offset", "says"),
    [(0, "not a packed token file"), (8, "its header says"), (HEADER.size, "checksum"), (-1, "checksum")],
    ids=["magic", "count", "first token", "last token"],
)
def test_one_wrong_byte_is_found_and_the_message_names_file_and_remedy(
    tmp_path: Path, sources: Path, offset: int, says: str
) -> None:
    path = pack(tmp_path / "packed.bytes", sources)
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    with pytest.raises(PackedFileError, match=says) as error:
        Windows(path, "training", context=8)
    assert str(path) in str(error.value)
    assert "delete it" in str(error.value)


@pytest.mark.parametrize("kept", [0, 10, HEADER.size, HEADER.size + 10])
def test_a_short_file_is_found(tmp_path: Path, sources: Path, kept: int) -> None:
    path = pack(tmp_path / "packed.bytes", sources)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(PackedFileError):
        Windows(path, "training", context=8)


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_neither_file_nor_temporary(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError, match="No space left"):
        pack(tmp_path / "cache" / "packed.bytes", sources)
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_file_appears_whole(tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache" / "packed.bytes"
    seen: list[tuple[bool, int]] = []
    replace = os.replace

    def spy(source: str, target: Path) -> None:
        seen.append((path.exists(), Path(source).stat().st_size))
        replace(source, target)

    monkeypatch.setattr(os, "replace", spy)
    pack(path, sources)
    assert seen == [(False, path.stat().st_size)]


def test_two_packers_at_once(tmp_path: Path, sources: Path) -> None:
    """Both are held at the gate until both have found no file, then both write."""
    path = tmp_path / "cache" / "packed.bytes"
    code = (
        "import sys; from pathlib import Path; from examples.stdlib_gpt import data\n"
        "read = data._read_split\n"
        "def held(root):\n"
        "    print('found none', flush=True); sys.stdin.readline(); return read(root)\n"
        "data._read_split = held\n"
        "path = data.pack(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(len(data.Windows(path, 'training', context=8)), flush=True)\n"
    )
    command = [sys.executable, "-c", code, str(path), str(sources)]
    packers = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        assert [packer.stdout.readline() for packer in packers if packer.stdout] == ["found none\n"] * 2
        for packer in packers:
            assert packer.stdin is not None
            packer.stdin.write("\n")
            packer.stdin.flush()
        counts = [packer.communicate(timeout=60)[0] for packer in packers]
    finally:
        for packer in packers:
            packer.kill()
            packer.wait()
    assert [packer.returncode for packer in packers] == [0, 0]
    assert counts == [f"{len(Windows(path, 'training', context=8))}\n"] * 2
    assert [file.name for file in path.parent.iterdir()] == [path.name]
