"""Public names stay what they are, whatever is imported in whatever order."""

from __future__ import annotations

import inspect

import kvcore.backends.cuda

import kvcore
import kvcore.formats
from kvcore import dispatch


def test_backends_is_the_function_also_after_a_backend_was_imported():
    assert kvcore.backends() == dispatch.backends()
    assert kvcore.backends() == kvcore.backends()
    assert inspect.ismodule(kvcore.backends.cuda)


def test_formats_is_the_function_also_after_the_package_was_imported():
    assert "q2k" in list(kvcore.formats())


def test_every_public_name_is_there():
    for name in kvcore.__all__:
        assert getattr(kvcore, name) is not None, name
