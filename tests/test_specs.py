"""Arguments made from their specs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from autoloop import _specs

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
COMPLEX = ["complex64", "complex128"]
ZEROS = ["int8", "int32", "int64", "uint8", "uint32", "bool", "int4"]


def spec(shape, dtype, **params):
    return jax.ShapeDtypeStruct(shape, dtype, **params)


@pytest.fixture(autouse=True)
def wide():
    """64-bit types are as they say in this file."""
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("shape", [(), (4, 3), (0, 3)], ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, *ZEROS])
def test_values_have_the_shape_and_dtype_of_their_spec(dtype, shape):
    wanted = spec(shape, dtype)
    made = _specs.make(wanted, seed=0)
    assert isinstance(made, jax.Array)
    assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype)
    assert not jax.typeof(made).weak_type


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_floats_are_normal(dtype):
    made = np.asarray(_specs.make(spec((500,), dtype), seed=0)).astype(complex)
    assert np.all(np.isfinite(made))
    assert abs(made.mean()) < 0.2
    assert 0.8 < np.sqrt(np.mean(np.abs(made) ** 2)) < 1.2
    assert ("complex" in dtype) == bool(np.abs(made.imag).max() > 0.1)


@pytest.mark.parametrize("dtype", ZEROS)
def test_integers_and_booleans_are_zero(dtype):
    assert not np.any(np.asarray(_specs.make(spec((5,), dtype), seed=0)).astype(int))


def test_seeds_make_different_floats_and_the_same_ones_again():
    made = [np.asarray(_specs.make(spec((5,), "float32"), seed)) for seed in (0, 1, 0)]
    np.testing.assert_array_equal(made[0], made[2])
    assert np.all(made[0] != made[1])


URBG = pytest.param(
    "unsafe_rbg",
)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)], ids=str)
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", URBG])
def test_keys_are_real_and_differ(impl, shape):
    dtype = jax.random.key(0, impl=impl).dtype
    made = _specs.make(spec(shape, dtype), seed=0)
    assert (made.shape, made.dtype) == (shape, dtype)
    bits = np.asarray(jax.random.key_data(made))
    assert len(np.unique(bits.reshape(made.size, bits.shape[-1]), axis=0)) == made.size
    for key in made.reshape(-1):
        jax.random.bits(key)


def test_values_stay_as_they_are():
    for value in (1.5, np.ones(3), jnp.ones(3), jax.random.key(0)):
        assert _specs.make(value, seed=0) is value


def test_a_spec_is_told_from_a_value():
    assert not _specs.has_specs([1.0, jnp.ones(3)])
    assert not _specs.has_specs([])
    assert _specs.has_specs([1.0, spec((), "float32")])


@pytest.mark.parametrize("dtype", ["float32", "int32", jax.random.key(0).dtype], ids=str)
def test_values_lie_where_their_spec_says(dtype):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), "x")
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    made = _specs.make(spec((4,), dtype, sharding=sharding), seed=0)
    assert made.committed
    assert made.sharding.is_equivalent_to(sharding, 1)
    assert made.sharding.device_set == {jax.devices()[0]}
    assert not _specs.make(spec((4,), dtype), seed=0).committed


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_values_are_as_weak_as_their_spec(dtype):
    assert jax.typeof(_specs.make(spec((), dtype, weak_type=True), seed=0)).weak_type
