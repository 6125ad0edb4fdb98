"""What type checkers see is proven by mypy over `typed.py`; `.ci/run` does the same with the package."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WRONG = """
from autoloop import autoloop

@autoloop
def fun(x: int) -> str:
    return str(x)

fun("x")
reveal_type(fun(1))
"""


@pytest.mark.slow  # mypy reads jax's types too: 20 s and more without a cache
def test_the_decorated_function_keeps_its_signature_for_mypy(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "wrong.py").write_text(WRONG)
    words = ["--strict", "--no-error-summary", "--cache-dir", str(tmp_path), "--config-file", "pyproject.toml"]
    command = [sys.executable, "-m", "mypy", *words, "tests/typed.py", str(tmp_path / "wrong.py")]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=500)
    first, second = done.stdout.splitlines()
    assert first.endswith(
        'error: Argument 1 to "__call__" of "Autoloop" has incompatible type "str"; expected "int"  [arg-type]'
    )
    assert second.endswith('note: Revealed type is "str"')
