"""Where warnings point: at the user's line, however deep in autoloop or jax they arise."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoloop import AutoloopWarning, autoloop, settings
from autoloop._store import Store


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.grad, jax.vmap, lambda f: lambda x: jax.eval_shape(f, x)])
def test_a_forced_plan_that_does_not_fit_is_warned_of_at_the_call(around):
    total = autoloop(lambda xs: lax.scan(lambda c, x: (c + x.sum(), None), 0.0, xs)[0])
    xs = jnp.ones((3, 4)) if around is jax.vmap else jnp.ones(4)
    with settings(plan="7=inline", mode="cached"), pytest.warns(AutoloopWarning, match="does not fit") as caught:
        around(total)(xs)
    assert {warning.filename for warning in caught} == {__file__}


def test_a_wisdom_file_that_can_not_be_read_is_warned_of_at_the_call(tmp_path):
    store = Store(tmp_path / "store", [str(tmp_path / "missing.json")])
    with pytest.warns(AutoloopWarning, match=r"missing\.json") as caught:
        store.get("key")
    assert [warning.filename for warning in caught] == [__file__]
    store.close()
