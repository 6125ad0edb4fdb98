"""Examples in docstrings and in the README run as they are printed."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import jax.numpy as jnp
import pytest

import autoloop
from autoloop import testing

README = Path(__file__).parents[1] / "README.md"


def find_examples():
    """The docstrings of the package that hold examples."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for found in pkgutil.walk_packages(autoloop.__path__, "autoloop."):
        if not found.name.endswith("__main__"):
            module = importlib.import_module(found.name)
            yield from (test for test in finder.find(module) if test.examples)


EXAMPLES = list(find_examples())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda test: test.name)
def test_the_example_of_a_docstring(example, quick):
    runner = doctest.DocTestRunner()
    runner.run(example)
    assert runner.summarize(verbose=False).failed == 0


def test_public_names_have_examples():
    names = {example.name for example in EXAMPLES}
    for name in ("_decorate.autoloop", "_config.settings", "_listeners.on_record", "_plan.Plan", "_asked.Asked.using"):
        assert f"autoloop.{name}" in names


#: Sections whose Python other test files run: the plugin's, and those that need other libraries.
ELSEWHERE = ("Testing", "Watching a long loop", "Recipes")


def python_blocks():
    """Titles of the README's sections and their Python, in order."""
    text = README.read_text()
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        title = section.split("\n")[0]
        blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        yield from ((title, block) for block in blocks if title not in ELSEWHERE)


def test_the_python_of_the_readme_runs_in_order(capsys):
    names = {"w": jnp.eye(16), "xs": jnp.ones((50, 20, 16)), "__name__": "__main__"}
    with testing.fake_timings({"as-written": 2e-3, "0=python(1)": 1e-3, "0=inline": 4e-3}):
        for title, block in python_blocks():
            exec(compile(block, f"README.md, {title}", "exec"), names)
    assert "plan in force: 0=python(1) (runs 2.00x as fast as written)" in (out := capsys.readouterr().out)
    (tree,) = [
        block for block in re.findall(r"```text\n(.*?)```", README.read_text(), re.DOTALL) if "carried, " in block
    ]
    assert _counts(tree) in _counts(out)


def _counts(text):
    """A text without the counts of equations, which differ between versions of jax."""
    return re.sub(r"\d+ equations|\d+%", "#", text)
