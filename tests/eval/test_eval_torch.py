"""kvcore.torch: tensors in and out without a copy."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

import kvcore  # noqa: E402
from kvcore.errors import ShapeError  # noqa: E402
from kvcore.torch import TorchCache, as_array, as_tensor  # noqa: E402


def test_a_float32_tensor_comes_in_without_a_copy():
    x = torch.randn(5, 2, 64)
    assert as_array(x).__array_interface__["data"][0] == x.data_ptr()


def test_an_output_goes_out_without_a_copy():
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    t = as_tensor(a)
    assert t.data_ptr() == a.__array_interface__["data"][0]
    t[0, 0] = 7
    assert a[0, 0] == 7


def test_read_only_arrays_are_copied_so_that_nobody_writes_them():
    a = np.zeros(3, np.float32)
    a.setflags(write=False)
    as_tensor(a)[0] = 1
    assert a[0] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_cache_of_tensors_equals_a_cache_of_arrays(dtype):
    spec = kvcore.CacheSpec(format="q4_0", n_kv_heads=2, head_dim=64)
    be, gen = kvcore.get_backend("cpu"), torch.Generator().manual_seed(0)
    k, v = (torch.randn(70, 2, 64, generator=gen).to(dtype) for _ in range(2))
    q = torch.randn(1, 4, 64, generator=gen).to(dtype)
    ours, plain = TorchCache(be.cache(spec, 96)), be.cache(spec, 96)
    ours.append(k, v)
    plain.append(k.float().numpy(), v.float().numpy())
    out = ours.attend(q)
    assert isinstance(out, torch.Tensor)
    np.testing.assert_array_equal(out.numpy(), plain.attend(q.float().numpy()))
    np.testing.assert_array_equal(ours.read()[0].numpy(), plain.read()[0])
    assert len(ours) == 70


def test_strided_tensors_are_read_as_they_lie():
    spec = kvcore.CacheSpec(format="int8", n_kv_heads=2, head_dim=64)
    be = kvcore.get_backend("cpu")
    k = torch.randn(2, 40, 64).transpose(0, 1)
    a, b = TorchCache(be.cache(spec, 64)), TorchCache(be.cache(spec, 64))
    a.append(k, k)
    b.append(k.contiguous(), k.contiguous())
    np.testing.assert_array_equal(a.read()[0].numpy(), b.read()[0].numpy())


def test_tensors_that_require_grad_are_taken():
    x = torch.randn(3, 2, 64, requires_grad=True)
    assert as_array(x).shape == (3, 2, 64)


def test_what_is_no_array_is_refused():
    with pytest.raises(ShapeError, match="no array"):
        as_tensor("text")
