"""The script a newcomer runs: what it installs and when, and what it says when it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="dev is a bash script")

STUB = """#!/usr/bin/env bash
case "$*" in
*hashlib*) sha256sum <pyproject.toml | cut -d' ' -f1 ;;
*) echo "$(basename "$0") $*" >>calls.log ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder with dev, a pyproject.toml, and a .venv whose programs only write down calls."""
    shutil.copy(REPO / "dev", tmp_path / "dev")
    (tmp_path / "pyproject.toml").write_text("one\n")
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "kvcore", "ruff", "mypy"):
        (programs / name).write_text(STUB)
        (programs / name).chmod(0o755)
    return tmp_path


def dev(folder, *arguments, **environment):
    return subprocess.run(
        [str(folder / "dev"), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def calls(folder):
    log = folder / "calls.log"
    found = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return found


def test_installs_once_and_again_when_pyproject_changes(checkout):
    assert dev(checkout, "generate", "hello").returncode == 0
    first = calls(checkout)
    assert sum("pip install" in c and ".[lab]" in c for c in first) == 1
    assert first[-1] == "kvcore generate hello"
    dev(checkout, "generate", "hello")
    assert calls(checkout) == ["kvcore generate hello"]
    (checkout / "pyproject.toml").write_text("two\n")
    dev(checkout, "generate", "hello")
    assert any("pip install" in c for c in calls(checkout))


def test_the_tests_environment_also_serves_generate(checkout):
    dev(checkout, "test")
    calls(checkout)
    dev(checkout, "generate", "hello")
    assert calls(checkout) == ["kvcore generate hello"]


def test_test_runs_the_four_checks_in_order_and_ends_with_pytest(checkout):
    assert dev(checkout, "test", "-k", "x").returncode == 0
    assert calls(checkout)[1:] == [
        "ruff check .",
        "ruff format --check .",
        "mypy ",
        "python -m pytest -n 2 -k x",
    ]


def test_generate_without_a_prompt_brings_one_and_keeps_options(checkout):
    dev(checkout, "generate", "--format", "int8")
    (call,) = [c for c in calls(checkout) if c.startswith("kvcore")]
    assert call.startswith("kvcore generate ")
    assert call.endswith("--format int8")
    assert len(call) > len("kvcore generate --format int8") + 10


def test_works_from_any_folder(checkout, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    ran = subprocess.run(
        [str(checkout / "dev"), "generate", "hello"],
        cwd=elsewhere,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0
    assert calls(checkout)[-1] == "kvcore generate hello"


def fake_python(folder, *, new_enough, has_venv):
    script = folder / "fakepython"
    script.write_text(
        "#!/usr/bin/env bash\n"
        'case "$*" in\n'
        f"*version_info*) exit {0 if new_enough else 1} ;;\n"
        f"*ensurepip*) exit {0 if has_venv else 1} ;;\n"
        "esac\n"
    )
    script.chmod(0o755)
    return str(script)


def test_says_when_python_is_too_old(checkout):
    shutil.rmtree(checkout / ".venv")
    ran = dev(checkout, "test", PYTHON=fake_python(checkout, new_enough=False, has_venv=True))
    assert ran.returncode == 1
    assert "Python 3.10 or newer" in ran.stderr


def test_says_when_python3_venv_is_missing(checkout):
    shutil.rmtree(checkout / ".venv")
    ran = dev(checkout, "test", PYTHON=fake_python(checkout, new_enough=True, has_venv=False))
    assert ran.returncode == 1
    assert "install python3-venv" in ran.stderr


def test_an_unknown_command_is_a_wrong_call(checkout):
    ran = dev(checkout, "nosuch")
    assert ran.returncode == 2
    assert "unknown command: nosuch" in ran.stderr
    assert "./dev generate" in dev(checkout, "help").stdout
