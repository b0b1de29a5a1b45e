"""The build cache: one build per source, safe under concurrency, corruption and refusal."""

from __future__ import annotations

import multiprocessing
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from kvcore.compiler.build import Builder, DiskCache, build_error, build_key, cache_root
from kvcore.compiler.render import Source
from kvcore.errors import BuildError
from tests.compiler.declarations import source_of


class Counting:
    """A compiler that counts, and refuses binaries on demand."""

    identity = "counting 1"

    def __init__(self) -> None:
        self.compiled = 0
        self.refuse: set[bytes] = set()

    def compile(self, source: Source) -> bytes:
        self.compiled += 1
        return b"binary %d of " % self.compiled + source.key.encode()

    def load(self, source: Source, binary: bytes) -> bytes:
        if binary in self.refuse:
            raise build_error(source, "counting", "stale")
        return binary


@pytest.fixture
def source() -> Source:
    return source_of("words", "opencl")


def test_a_source_is_built_once_per_process_and_once_per_machine(
    tmp_path: Path, source: Source
) -> None:
    compiler = Counting()
    builder = Builder[bytes](compiler, DiskCache(tmp_path))
    assert builder(source) is builder(source)
    assert Builder[bytes](compiler, DiskCache(tmp_path))(source) == builder(source)
    assert compiler.compiled == 1


def test_the_key_covers_text_flags_and_compiler(source: Source) -> None:
    flags = replace(source, target=replace(source.target, flags=("-other",)))
    text = replace(source, text=source.text + " ")
    keys = {build_key(s, "a") for s in (source, flags, text)} | {build_key(source, "b")}
    assert len(keys) == 4


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_corrupted_entry_is_detected_and_rebuilt(
    tmp_path: Path, source: Source, damage: bytes | None
) -> None:
    compiler, cache = Counting(), DiskCache(tmp_path)
    Builder[bytes](compiler, cache)(source)
    path = cache.path(build_key(source, compiler.identity))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(bytes(raw) if damage is None else damage)
    again = Builder[bytes](compiler, cache)(source)
    assert compiler.compiled == 2
    assert cache.get(build_key(source, compiler.identity)) == again


def test_an_intact_binary_that_the_driver_refuses_is_rebuilt(
    tmp_path: Path, source: Source
) -> None:
    compiler, cache = Counting(), DiskCache(tmp_path)
    compiler.refuse.add(Builder[bytes](compiler, cache)(source))
    assert Builder[bytes](compiler, cache)(source).startswith(b"binary 2")


def test_a_failed_build_is_not_remembered(tmp_path: Path, source: Source) -> None:
    compiler, cache = Counting(), DiskCache(tmp_path)
    builder = Builder[bytes](compiler, cache)
    compiler.refuse.add(b"binary 1 of " + source.key.encode())
    with pytest.raises(BuildError, match="stale"):
        builder(source)
    assert builder(source).startswith(b"binary 2")


def test_threads_that_ask_together_build_once(tmp_path: Path, source: Source) -> None:
    class Slow(Counting):
        def compile(self, source: Source) -> bytes:
            time.sleep(0.05)
            return super().compile(source)

    compiler = Slow()
    builder = Builder[bytes](compiler, DiskCache(tmp_path))
    threads = [threading.Thread(target=builder, args=(source,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiler.compiled == 1


def hammer(root: str, seed: int) -> int:
    """Write and read the same keys as the other processes; return the intact reads."""
    cache, intact = DiskCache(Path(root)), 0
    for i in range(200):
        key = f"{i % 4:064x}"
        payload = bytes([i % 4]) * 20_000
        if (i + seed) % 3 == 0:
            cache.put(key, payload)
        got = cache.get(key)
        assert got in (None, payload)
        intact += got is not None
    return intact


def test_processes_that_share_the_cache_never_read_half_an_entry(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        intact = pool.starmap(hammer, [(str(tmp_path), seed) for seed in range(3)])
    assert min(intact) > 0
    assert not list(tmp_path.rglob("*.part"))


def test_an_unwritable_folder_is_a_warning_not_a_failure(tmp_path: Path, source: Source) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    compiler = Counting()
    with pytest.warns(RuntimeWarning, match=r"\[build\] the cache folder .* cannot be written"):
        assert Builder[bytes](compiler, DiskCache(blocker))(source)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("KVCORE_CACHE", "/k")
    assert cache_root() == Path("/k")
    monkeypatch.delenv("KVCORE_CACHE")
    assert cache_root() == Path("/x/kvcore")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache/kvcore"


def test_pocl_and_intel_binaries_survive_a_new_device_object() -> None:
    from kvcore.backends.sycl.discovery import opencl_devices
    from kvcore.backends.sycl.opencl_device import OpenClDevice

    usable = [found for found in opencl_devices() if found.usable]
    if not usable:
        pytest.skip("no OpenCL device")
    source = source_of("words", "opencl")
    for found in usable:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            OpenClDevice(found.handle).build(source)
            second = OpenClDevice(found.handle)
            second.compile = None  # type: ignore[method-assign,assignment]
            assert second.build(source).source is source
