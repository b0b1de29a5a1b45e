"""Choosing a backend: strict by default, every refusal with its reason, fallbacks counted."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

import kvcore
from kvcore import dispatch
from kvcore.backend import Availability
from kvcore.errors import BackendUnavailable, LinkError, UnsupportedError
from kvcore.reference import Reference
from tests.toy_backends import method


def fake(name: str, *, kind: str = "cpu", reason: str = "", gaps: Any = None) -> type[Reference]:
    """Return a backend like the reference that is available unless `reason` says why not."""

    def probe(cls: type) -> Availability:
        device = "" if reason else f"{name} device"
        return Availability(
            available=not reason, device=device, kind="" if reason else kind, reason=reason
        )

    body: dict[str, Any] = {"name": name, "probe": classmethod(probe)}
    if gaps:

        def refuse(be: Any, **arguments: Any) -> None:
            raise UnsupportedError(f"[append] {name}: {gaps}")

        body["append"] = method("append", refuse, gaps)
    return type("Fake", (Reference,), body)


@pytest.fixture
def world(monkeypatch):
    """Return a function that replaces all backends of the tree by fakes."""

    def build(*classes: type[Reference]) -> None:
        tree = {}
        for cls in classes:
            module = types.ModuleType(f"fake_{cls.name}")
            module.BACKEND = cls
            monkeypatch.setitem(sys.modules, module.__name__, module)
            tree[cls.name] = module.__name__
        tree["reference"] = "kvcore.reference"
        monkeypatch.setattr(dispatch, "IN_TREE", tree)
        monkeypatch.setattr(dispatch, "PLANNED", {})
        monkeypatch.setattr(dispatch, "_entry_points", dict)
        dispatch.forget()

    monkeypatch.delenv("KVCORE_BACKEND", raising=False)
    yield build
    dispatch.forget()


def test_a_gpu_is_preferred_then_the_cpu_backend(world):
    world(fake("cuda", reason="no driver"), fake("sycl", kind="gpu"), fake("cpu"))
    assert kvcore.get_backend().name == "sycl"
    world(fake("cuda", reason="no driver"), fake("sycl", kind="cpu"), fake("cpu"))
    assert kvcore.get_backend().name == "cpu"
    world(fake("cuda", reason="no driver"), fake("sycl", kind="cpu"))
    assert kvcore.get_backend().name == "sycl"


def test_the_reference_is_never_chosen_unless_named(world):
    world(fake("cpu", reason="numba is missing"))
    with pytest.raises(BackendUnavailable, match="cpu: numba is missing"):
        kvcore.get_backend()
    assert kvcore.get_backend("reference").name == "reference"


def test_every_candidate_that_failed_is_listed_with_its_reason(world):
    world(fake("cuda", reason="no driver"), fake("cpu", reason="no numba"))
    with pytest.raises(BackendUnavailable) as caught:
        kvcore.get_backend()
    assert "cuda: no driver" in str(caught.value)
    assert "cpu: no numba" in str(caught.value)


def test_the_environment_variable_forces_a_backend_and_a_name_wins_over_it(world, monkeypatch):
    world(fake("sycl", kind="gpu"), fake("cpu"))
    monkeypatch.setenv("KVCORE_BACKEND", "cpu")
    assert kvcore.get_backend().name == "cpu"
    assert kvcore.get_backend("sycl").name == "sycl"
    monkeypatch.setenv("KVCORE_BACKEND", "abacus")
    with pytest.raises(BackendUnavailable, match="unknown backend: got 'abacus'"):
        kvcore.get_backend()


def test_a_forced_backend_that_is_absent_is_refused_and_nothing_else_is_taken(world):
    world(fake("cuda", reason="no driver found"), fake("cpu"))
    with pytest.raises(BackendUnavailable, match="cuda is not available: no driver found"):
        kvcore.get_backend("cuda")
    assert kvcore.fallback_counts() == {}


def test_an_unknown_name_lists_the_known_ones(world):
    world(fake("cpu"))
    with pytest.raises(BackendUnavailable, match=r"unknown backend.*expected one of cpu, ref"):
        kvcore.get_backend("tpu")


def test_a_planned_backend_says_that_and_why(world, monkeypatch):
    world(fake("cpu"))
    monkeypatch.setitem(dispatch.PLANNED, "vulkan", "no compute path yet")
    with pytest.raises(BackendUnavailable, match=r"vulkan is planned, not written: no compute"):
        kvcore.get_backend("vulkan")


def test_a_fallback_is_taken_only_on_request_and_counted(world):
    world(fake("cuda", reason="no driver"), fake("cpu"))
    assert kvcore.get_backend("cuda", fallback="cpu").name == "cpu"
    assert kvcore.get_backend("cuda", fallback="cpu").name == "cpu"
    assert kvcore.get_backend("cpu", fallback="reference").name == "cpu"
    assert kvcore.fallback_counts() == {"cuda -> cpu": 2}
    spec = kvcore.CacheSpec(format="int8", n_kv_heads=1, head_dim=64)
    assert "fallback cuda -> cpu: 2 times" in str(kvcore.explain(spec))


def test_backends_lists_every_one_with_its_device_or_the_reason(world):
    world(fake("cuda", reason="no driver"), fake("cpu"))
    rows = {b.name: b for b in kvcore.backends()}
    assert set(rows) == {"cuda", "cpu", "reference"}
    assert (rows["cuda"].available, rows["cuda"].reason) == (False, "no driver")
    assert (rows["cpu"].available, rows["cpu"].device) == (True, "cpu device")
    assert all(b.source == "kvcore" for b in rows.values())


def test_a_backend_whose_table_drifted_is_a_bug_and_not_an_absence(world):
    cls = fake("cpu")
    cls.select = None
    world(cls)
    with pytest.raises(LinkError, match="missing select"):
        kvcore.backends()


def test_a_backend_is_opened_once(world):
    world(fake("cpu"))
    assert kvcore.get_backend("cpu") is kvcore.get_backend()


def test_explain_names_a_kernel_per_op_and_why_others_are_not_used(world):
    world(fake("cuda", reason="no driver"), fake("sycl", kind="cpu"), fake("cpu"))
    spec = kvcore.CacheSpec(format="q2k", n_kv_heads=2, head_dim=64)
    told = kvcore.explain(spec)
    assert told.backend == "cpu"
    assert {c.op for c in told.choices} == set(kvcore.ops.declared())
    assert all(c.kernel == f"cpu.{c.op}" for c in told.choices)
    text = str(told)
    assert "q2k on cpu" in text
    assert "not cuda: no driver" in text
    assert "not sycl: available (sycl device), but cpu is preferred" in text
    assert "not reference: the oracle" in text


def test_explain_of_an_absent_backend_gives_the_reason_and_no_choice(world):
    world(fake("cuda", reason="no driver"), fake("cpu"))
    spec = kvcore.CacheSpec(format="q2k", n_kv_heads=2, head_dim=64)
    told = kvcore.explain(spec, backend="cuda")
    assert (told.backend, told.choices, told.refusals) == ("", (), ("cuda: no driver",))


def test_a_gap_is_refused_with_every_reason_and_the_nearest_choice(world):
    world(fake("cuda", kind="gpu", gaps={"q2c": "no kernel for codebooks"}), fake("cpu"))
    be = kvcore.get_backend()
    spec = kvcore.CacheSpec(format="q2k", n_kv_heads=2, head_dim=64)
    with pytest.raises(UnsupportedError) as caught:
        be.cache(spec, 64)
    text = str(caught.value)
    assert "[cuda] cannot serve format q2k" in text
    assert "append on cuda with codec q2c: no kernel for codebooks" in text
    assert "nearest: the same format on cpu" in text
    choice = {c.op: c for c in kvcore.explain(spec, backend="cuda").choices}["append"]
    assert (choice.kernel, choice.reason) == ("", "no kernel for codebooks")
    assert be.cache(spec.replace(format="q4_0"), 64).backend is be


def test_where_nothing_serves_a_format_others_of_about_its_size_are_named(world):
    world(fake("cuda", gaps={"*": "out of order"}))
    spec = kvcore.CacheSpec(format="q2k", n_kv_heads=2, head_dim=256)
    dispatch.IN_TREE.pop("reference")
    with pytest.raises(UnsupportedError, match=r"nearest formats by size: .*k4v2c"):
        kvcore.get_backend("cuda").cache(spec, 64)


def test_a_cache_falls_back_only_on_request_and_it_is_counted(world):
    world(fake("cuda", gaps={"q2c": "no"}), fake("cpu"))
    spec = kvcore.CacheSpec(format="q2", n_kv_heads=2, head_dim=64)
    cache = kvcore.get_backend("cuda").cache(spec, 64, fallback="cpu")
    assert cache.backend.name == "cpu"
    assert kvcore.fallback_counts() == {"cuda -> cpu (q2)": 1}
    fine = kvcore.get_backend("cuda").cache(spec.replace(format="int8"), 64, fallback="cpu")
    assert fine.backend.name == "cuda"
