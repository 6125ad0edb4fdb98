"""The benchmark programs: each is listed, says what it is, and its form by hand returns what it returns."""

import importlib
import sys
from pathlib import Path

import jax
import pytest

import autoloop
from autoloop._agree import Tolerance, disagreement, to_host
from autoloop._call import Call
from autoloop._function import Function
from autoloop._program import Program

BENCHMARKS = Path(autoloop.__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.exists(), reason="installed without its benchmarks")
sys.path.insert(0, str(BENCHMARKS))
zoo = importlib.import_module("zoo") if BENCHMARKS.exists() else None
NAMES = zoo.PROGRAMS if zoo else ()

#: Compile for seconds even at the small size.
HEAVY = {"ppo", "maml", "lstm_training", "gradient_accumulation", "transformer_layers", "hmc"}
#: Little of what XLA does to a program changes what it returns, and it takes most of these tests' time.
QUICKLY = {"xla_backend_optimization_level": 0}


def arguments(module):
    return jax.jit(lambda: module.arguments("small"), compiler_options=QUICKLY)()


def run(function, args):
    return jax.tree.leaves(jax.jit(function, compiler_options=QUICKLY)(*args))


def test_every_module_is_listed():
    modules = {path.stem for path in (BENCHMARKS / "zoo").glob("*.py") if not path.stem.startswith("_")}
    assert modules == set(NAMES)
    assert len(NAMES) == len(set(NAMES)) >= 24


def test_a_program_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"no program 'lager' in the zoo; there are langevin, .*newton_cg"):
        zoo.load("lager")


@pytest.mark.parametrize("name", NAMES)
def test_says_what_it_is_and_has_sizes(name):
    module = zoo.load(name)
    assert "Loops" in module.__doc__
    assert "Bod" in module.__doc__
    small, large = (jax.tree.leaves(jax.eval_shape(lambda s=size: module.arguments(s))) for size in zoo.SIZES)
    assert sum(leaf.size for leaf in small) < sum(leaf.size for leaf in large)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in HEAVY else []) for n in NAMES])
def test_by_hand_returns_the_same(name):
    module = zoo.load(name)
    args = arguments(module)
    written = run(module.program, args)
    assert all(jax.numpy.isfinite(x).all() for x in written if jax.dtypes.issubdtype(x.dtype, jax.numpy.inexact))
    if module.by_hand is not module.program:
        _, reason = disagreement(to_host(written), run(module.by_hand, args), Tolerance())
        assert not reason


@pytest.mark.parametrize(("name", "depth"), [("ppo", 4), ("time_warping", 3), ("newton_cg", 2), ("maml", 3)])
def test_loops_are_nested_as_deep_as_it_says(name, depth):
    module = zoo.load(name)
    args = arguments(module)
    function = Function(module.program)
    program = Program.trace(function, Call.of(function, args, {}).key, args, {})
    assert max(len(loop.path) for loop in program.loops) == depth
