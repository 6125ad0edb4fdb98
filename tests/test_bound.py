"""A decorated method of an instance."""

import copy
import inspect
import pickle

import jax
import jax.numpy as jnp
import pytest

from autoloop import autoloop

pytestmark = pytest.mark.usefixtures("quick")


class Model:
    def __init__(self, scale):
        self.scale = scale

    @autoloop(static_argnums=0, forms=["inline"])
    def step(self, x):
        """Three times scaled."""
        return jax.lax.scan(lambda c, _: (c * self.scale, None), x, None, length=3)[0]

    def __eq__(self, other):
        return isinstance(other, Model) and other.scale == self.scale

    def __hash__(self):
        return hash(self.scale)


X = jnp.float32(1)


def test_everything_that_takes_arguments_is_asked_without_the_instance():
    step = Model(2.0).step
    assert step(X) == 8
    assert [str(step.plan(X)), step.report(X).winner, step.warmup(X).winner] == ["0=inline"] * 3
    assert len(step.plans(X)) == 2
    assert len(step.loops(X).loops) == 1
    assert step.eval_shape(X).shape == ()
    assert step.lower(X).compile() is not None
    assert step.trace(X).jaxpr is not None
    assert "no miss" in step.explain_miss(X)
    assert step.using("0=unroll(2)")(X) == 8
    step.forget(X)
    assert step.plan(X) is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_it_is_copied_as_a_method_is(copied):
    step = copied(Model(2.0).step)
    assert step(X) == 8
    assert step.__self__ == Model(2.0)


def test_it_looks_like_the_method():
    step = Model(2.0).step
    assert (step.__name__, step.__qualname__, step.__module__) == ("step", "Model.step", __name__)
    assert inspect.getdoc(step) == step.__doc__ == "Three times scaled."
    assert list(inspect.signature(step).parameters) == ["x"]
