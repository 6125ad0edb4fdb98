"""The pytest plugin, each time in a pytest of its own."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import autoloop
from autoloop import _pytest

ROOT = Path(autoloop.__file__).parents[1]

RUN = """
import sys, pytest
sys.exit(pytest.main(["-p", "no:cacheprovider", "-q", *{options!r}, {path!r}]))
"""

SUITE = """
import jax, jax.numpy as jnp, pytest
import autoloop

@autoloop.autoloop(forms=["inline"])
def fun(x):
    return jax.lax.scan(lambda c, _: (c * 0.5, None), x, None, length=3)[0]

def test_tuning_is_off():
    assert fun(8.0) == 1.0
    assert fun.report(8.0) is None
    with pytest.raises(RuntimeError, match="mode is 'off'"):
        fun.warmup(8.0)

def test_no_tuning(autoloop_no_tuning):
    with autoloop.settings() as found:
        assert found.mode == "off"

def test_isolated_store(autoloop_isolated_store):
    with autoloop.settings() as found:
        assert found.cache_dir == str(autoloop_isolated_store)

def test_forced(autoloop_forced):
    autoloop_forced("0=unroll(9)")
    with pytest.raises(autoloop.AutoloopWarning, match="from 1 to the length 3"):
        fun(8.0)

def test_fake_timings(autoloop_fake_timings):
    autoloop_fake_timings({"0=inline": 0.1})
    assert fun(8.0) == 1.0
    assert str(fun.plan(8.0)) == "0=inline"

def test_distorted_timings(autoloop_distorted_timings):
    autoloop_distorted_timings(seed=1)
    assert fun.warmup(8.0).trials

def test_after_them_tuning_is_off_again(autoloop_assert_forms_agree):
    assert fun.report(8.0) is None
    assert len(autoloop_assert_forms_agree(fun, 8.0, plans=["0=inline"])) == 1
"""

MODE = """
import os
def test_mode():
    assert os.environ["AUTOLOOP_MODE"] == "{mode}"
"""


@pytest.fixture
def suite(tmp_path, python):
    def run(text, *options, **environment):
        path = tmp_path / "test_of_a_user.py"
        path.write_text(text)
        return python(RUN.format(options=options, path=str(path)), JAX_PLATFORMS="cpu", **environment)

    return run


def test_a_suite_with_the_plugin_is_not_tuned_and_has_the_fixtures(suite):
    assert "7 passed" in suite(SUITE)


@pytest.mark.parametrize(
    ("options", "environment", "mode"),
    [
        ([], {"AUTOLOOP_MODE": "cached"}, "cached"),
        (["--autoloop-mode=strict"], {"AUTOLOOP_MODE": "cached"}, "strict"),
    ],
)
def test_the_mode_is_the_options_then_the_environments_then_off(suite, options, environment, mode):
    out = suite(MODE.format(mode=mode), "-v", *options, **environment)
    assert f"autoloop: mode {mode} (change it with --autoloop-mode)" in out


def test_loading_the_plugin_imports_neither_jax_nor_autoloop(python):
    out = python("import sys, autoloop._pytest; print({'jax', 'diskcache', 'numpy'} & set(sys.modules))")
    assert out == "set()\n"


@pytest.mark.parametrize("before", [None, "cached"])
def test_the_environment_is_left_as_it_was(monkeypatch, before):
    if before:
        monkeypatch.setenv("AUTOLOOP_MODE", before)
    config = SimpleNamespace(stash={}, getoption=lambda name: None)
    _pytest.pytest_configure(config)
    during = os.environ.pop("AUTOLOOP_MODE")
    _pytest.pytest_unconfigure(config)
    assert (during, os.environ.get("AUTOLOOP_MODE")) == (before or "off", before)


@pytest.mark.slow
def test_the_test_file_in_the_readme_passes(suite):
    section = (ROOT / "README.md").read_text().split("## Testing")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 1
    assert f"{blocks[0].count('def test_')} passed" in suite(blocks[0])
