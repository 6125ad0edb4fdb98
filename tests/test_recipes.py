"""The README's recipes with other libraries, run as they stand: tuned, no form fails, results as plain JAX's."""

import re
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

from autoloop import Autoloop, settings

pytestmark = [
    pytest.mark.ecosystem,
    # Their own: deprecated names, and Gymnax's dependencies'.
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning"),
]

README = (Path(__file__).parents[1] / "README.md").read_text()
SECTION = README.split("\n## Recipes\n")[1].split("\n## ")[0]
RECIPES = dict(re.findall(r"\n### (\w+)\n.*?```python\n(.*?)```", SECTION, re.DOTALL))

#: The libraries of each recipe, and how many decorated functions it calls.
NEEDS = {
    "Equinox": (["equinox"], 2),
    "Flax": (["flax"], 2),
    "Optax": (["optax"], 1),
    "BlackJAX": (["blackjax"], 1),
    "Gymnax": (["gymnax"], 1),
    "Diffrax": (["diffrax"], 1),
}


def test_every_recipe_is_run():
    assert RECIPES.keys() == NEEDS.keys()


def run(code, monkeypatch):
    """Runs a recipe; returns its calls as (function, args, kwargs, result), the arguments copied: some are donated."""
    calls, real = [], Autoloop.__call__

    def recorded(self, /, *args, **kwargs):
        before = copied((args, kwargs))
        result = real(self, *args, **kwargs)
        if not any(call[0] is self for call in calls):
            calls.append((self, *before, result))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Autoloop, "__call__", recorded)
        exec(compile(code, "recipe", "exec"), {"__name__": "recipe"})
    return calls


def copied(tree):
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, tree)


def check(want, got):
    for one, other in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        if isinstance(one, jax.Array):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_tuned_and_its_results_are_plain_jax_s(name, monkeypatch):
    libraries, count = NEEDS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # while they are imported
        for library in libraries:
            pytest.importorskip(library)
    with settings(budget_s=5):
        calls = run(RECIPES[name], monkeypatch)
    assert len(calls) == count
    for function, args, kwargs, result in calls:
        record = function.report(*args, **kwargs)
        assert not {"failed", "wrong"} & {trial.status for trial in record.trials}, str(record)
        with settings(mode="off"):
            want = function(*copied(args), **copied(kwargs))
        check(want, result)
        # Which plans a tuning gets to try hangs on the load of the machine; this one is run in any case.
        assert any(str(plan) == "0=python(1)" for plan in function.plans(*args, **kwargs))
        check(want, function.using("0=python(1)")(*args, **kwargs))
