"""The gate: which outputs agree with which, by dtype, special values, shape and options."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from autoloop._agree import Tolerance, disagreement, to_host

DEFAULT = Tolerance()

#: dtype -> (a relative error that passes by default, one that does not)
ERRORS = {
    "float64": (0.5e-9, 2e-9),
    "complex128": (0.5e-9, 2e-9),
    "float32": (0.5e-4, 2e-4),
    "complex64": (0.5e-4, 2e-4),
    "float16": (3e-3, 1e-2),
    "bfloat16": (2e-2, 6e-2),
    "float8_e4m3fn": (0.13, 0.4),
    "float8_e5m2": (0.13, 0.4),
}


def ramp(dtype):
    """Numbers whose largest is 1: the scale that errors are relative to."""
    values = np.array([-0.5, 0.25, 1.0, 0.0])
    return (values * (1 + 1j) / abs(1 + 1j) if "complex" in dtype else values).astype(dtype_of(dtype))


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def compare(want, got, tolerance=DEFAULT):
    return disagreement(to_host([want]), [got], tolerance)


@pytest.fixture(autouse=True)
def wide():
    """64-bit types are as they say in this file."""
    with jax.enable_x64(True):
        yield


# ------------------------------------------------ tolerances


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("as_array", [jnp.asarray, np.asarray], ids=["jax", "numpy"])
def test_equal_outputs_agree(dtype, as_array):
    want = ramp(dtype)
    assert compare(as_array(want), as_array(want)) == (0.0, "")
    assert compare(as_array(want), as_array(want), Tolerance(bitwise=True)) == (0.0, "")


@pytest.mark.parametrize(("dtype", "passes", "fails"), [(d, *errors) for d, errors in ERRORS.items()])
def test_each_dtype_has_its_tolerance(dtype, passes, fails):
    want = ramp(dtype)
    for error, agrees in ((passes, True), (fails, False)):
        got = (want.astype(complex if "complex" in dtype else float) - error).astype(want.dtype)
        found, reason = compare(want, got)
        assert (reason == "") is agrees, reason
        assert found == pytest.approx(error, rel=0.5)
        assert agrees or "relative, allowed is" in reason


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e3, 1e30])
def test_errors_are_relative_to_the_largest_magnitude(scale):
    want = np.array([1.0, 1e-6, 0.0]) * scale
    small = np.array([0.0, 1e-10, 1e-10]) * scale  # far over a thousandth of the smaller elements
    assert compare(want, want + small)[1] == ""
    assert compare(want, want + 100 * small)[1] != ""
    found, _ = compare(want, want + small)
    assert found == pytest.approx(1e-10)


RULES = {
    "rtol loosens": (Tolerance(rtol=0.1), 0.05, True),
    "rtol tightens": (Tolerance(rtol=1e-12), 1e-10, False),
    "rtol 0 takes equal numbers only": (Tolerance(rtol=0.0), 1e-15, False),
    "rtol 0 takes equal numbers": (Tolerance(rtol=0.0), 0.0, True),
    "atol adds": (Tolerance(atol=0.1), 0.05, True),
    "atol is not enough": (Tolerance(atol=0.01), 0.05, False),
    "atol is absolute": (Tolerance(rtol=0.0, atol=0.1), 0.15, False),
    "both add up": (Tolerance(rtol=0.1, atol=0.1), 0.15, True),
    "bitwise ignores them": (Tolerance(rtol=1.0, atol=1.0, bitwise=True), 1e-10, False),
}


@pytest.mark.parametrize(("tolerance", "error", "agrees"), [pytest.param(*r, id=k) for k, r in RULES.items()])
def test_options_change_the_tolerance(tolerance, error, agrees):
    want = ramp("float64")
    assert (compare(want, want + error, tolerance)[1] == "") is agrees


def test_atol_is_in_the_units_of_the_output():
    want = np.array([100.0, 0.0])
    assert compare(want, want + 0.05, Tolerance(rtol=0.0, atol=0.1))[1] == ""
    assert compare(want, want + 0.15, Tolerance(rtol=0.0, atol=0.1))[1] != ""


# ------------------------------------------------ special values


def special(*values, dtype="float32"):
    return np.array(values, dtype_of(dtype))


NAN, INF = np.nan, np.inf

SPECIAL = {
    "NaN in the same place": ((NAN, 1), (NAN, 1), ""),
    "only NaN": ((NAN, NAN), (NAN, NAN), ""),
    "NaN and inf in the same places": ((NAN, INF, -INF, 2), (NAN, INF, -INF, 2), ""),
    "only inf": ((INF, -INF), (INF, -INF), ""),
    "NaN in another place": ((NAN, 1), (1, NAN), "NaN in other places"),
    "NaN where none was": ((1, 1), (1, NAN), "NaN in other places"),
    "no NaN where one was": ((1, NAN), (1, 1), "NaN in other places"),
    "NaN for inf": ((1, INF), (1, NAN), "NaN in other places"),
    "inf of the other sign": ((1, INF), (1, -INF), "inf in other places"),
    "inf where none was": ((1, 1), (1, INF), "inf in other places"),
    "no inf where one was": ((1, INF), (1, 2), "inf in other places"),
    "an error beside NaN": ((NAN, 1), (NAN, 2), "off by"),
    "an error beside inf": ((INF, 1), (INF, 2), "off by"),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "float8_e5m2"])
@pytest.mark.parametrize(("want", "got", "reason"), [pytest.param(*r, id=k) for k, r in SPECIAL.items()])
def test_special_values_must_sit_in_the_same_places(want, got, reason, dtype):
    error, found = compare(special(*want, dtype=dtype), special(*got, dtype=dtype))
    assert reason in found
    assert bool(reason) == bool(found)
    assert reason != "" or error == 0.0


@pytest.mark.parametrize(
    ("want", "got", "agrees"),
    [
        (complex(NAN, 0), complex(NAN, 0), True),
        (complex(NAN, 0), complex(1, 0), False),
        (complex(INF, 1), complex(INF, 1), True),
        (complex(INF, 1), complex(-INF, 1), False),
        (complex(INF, 1), complex(1, INF), False),
        (complex(1, 1), complex(1, -1), False),
        (complex(1, 1), complex(1, 1 + 1e-6), True),
    ],
)
def test_complex_numbers(want, got, agrees):
    found = compare(special(want, 1, dtype="complex64"), special(got, 1, dtype="complex64"))[1]
    assert (found == "") is agrees


def test_warnings_are_not_caused_by_special_values():
    for dtype in ("float32", "float8_e4m3fn", "complex64"):
        compare(special(NAN, 1, dtype=dtype), special(1, NAN, dtype=dtype))
    compare(special(1.7e308, -1.7e308, dtype="float64"), special(1.7e308, -1.7e308, dtype="float64"))


# ------------------------------------------------ exact types


EXACT = {
    "int8": (1, 2),
    "int32": (1, 2),
    "int64": (2**60, 2**60 + 1),  # equal as floats
    "uint8": (0, 255),
    "uint64": (2**63, 2**63 + 1),
    "bool": (False, True),
    "int4": (1, -1),
}


@pytest.mark.parametrize("tolerance", [DEFAULT, Tolerance(rtol=10.0, atol=10.0)], ids=["default", "loose"])
@pytest.mark.parametrize(("dtype", "pair"), EXACT.items())
def test_integers_and_booleans_must_be_equal(dtype, pair, tolerance):
    one, other = (special(5 % 2, value, dtype=dtype) for value in pair)
    assert compare(one, one, tolerance) == (0.0, "")
    assert compare(one, other, tolerance)[1] == "output 0 differs in some bits"


@pytest.mark.parametrize("tolerance", [DEFAULT, Tolerance(rtol=1e9)], ids=["default", "loose"])
@pytest.mark.parametrize("make", [jax.random.key, lambda seed: jax.random.key(seed, impl="rbg"), jax.random.PRNGKey])
def test_keys_must_be_equal(make, tolerance):
    assert compare(make(0), make(0), tolerance) == (0.0, "")
    assert "differs in some bits" in compare(make(0), make(1), tolerance)[1]


def test_arrays_of_keys_must_be_equal():
    keys = jax.random.split(jax.random.key(0), 3)
    assert compare(keys, keys) == (0.0, "")
    assert "differs in some bits" in compare(keys, keys[::-1])[1]


BITS = {
    "the last digit": (1.0, float(np.nextafter(np.float32(1), np.float32(2)))),
    "the sign of zero": (0.0, -0.0),
}


@pytest.mark.parametrize(("want", "got"), [pytest.param(*pair, id=k) for k, pair in BITS.items()])
def test_bitwise_sees_every_bit(want, got):
    want, got = special(want, 1), special(got, 1)
    assert compare(want, got)[1] == ""
    assert "differs in some bits" in compare(want, got, Tolerance(bitwise=True))[1]
    assert compare(want, want, Tolerance(bitwise=True)) == (0.0, "")


def test_bitwise_takes_equal_nans():
    assert compare(special(NAN, 1), special(NAN, 1), Tolerance(bitwise=True)) == (0.0, "")


# ------------------------------------------------ shapes, and several outputs


OTHER_KIND = {
    "a shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "a rank": (np.zeros(1), np.zeros(())),
    "a broadcast": (np.zeros((2, 2)), np.zeros((1, 2))),
    "a dtype": (np.zeros(2, np.float32), np.zeros(2, np.float64)),
    "int and float": (np.zeros(2, np.int32), np.zeros(2, np.float32)),
    "empty and not": (np.zeros((0, 2)), np.zeros((2, 0))),
    "bool and int": (np.zeros(2, bool), np.zeros(2, np.int8)),
}


@pytest.mark.parametrize(("want", "got"), [pytest.param(*pair, id=k) for k, pair in OTHER_KIND.items()])
def test_shape_and_dtype_must_be_the_same(want, got):
    for tolerance in (DEFAULT, Tolerance(rtol=1e9, atol=1e9), Tolerance(bitwise=True)):
        error, reason = compare(want, got, tolerance)
        assert error == float("inf")
        assert reason == f"output 0 is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"


@pytest.mark.parametrize("dtype", [*ERRORS, *EXACT])
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2)])
def test_empty_outputs_agree(shape, dtype):
    empty = np.zeros(shape, dtype_of(dtype))
    assert compare(empty, empty) == (0.0, "")


@pytest.mark.parametrize("value", [2, 2.0, True, 2j, np.float32(2)])
def test_scalars_of_python_and_numpy_are_outputs_too(value):
    assert compare(value, value) == (0.0, "")
    assert compare(value, value + 1)[1] != ""


def test_the_number_of_outputs_must_be_the_same():
    one = np.ones(2)
    assert disagreement([one, one], [one], DEFAULT) == (float("inf"), "1 outputs instead of 2")
    assert disagreement([], [], DEFAULT) == (0.0, "")


def test_the_first_output_that_disagrees_is_named_and_the_largest_error_told():
    want = to_host([np.ones(2), np.ones(2, np.int32), np.ones(2)])
    error, reason = disagreement(want, [np.ones(2) + 1e-10, np.ones(2, np.int32), np.ones(2) + 3e-10], DEFAULT)
    assert reason == ""
    assert error == pytest.approx(3e-10, rel=1e-3)
    _, reason = disagreement(want, [np.ones(2), np.zeros(2, np.int32), np.zeros(2)], DEFAULT)
    assert reason.startswith("output 1 ")
    _, reason = disagreement(want, [np.ones(2), np.ones(2, np.int32), np.zeros(2)], DEFAULT)
    assert reason.startswith("output 2 is off by")


def test_outputs_on_the_host_outlive_their_buffers():
    value = jnp.arange(3.0)
    (kept,) = to_host([value])
    value.delete()
    assert disagreement([kept], [jnp.arange(3.0)], DEFAULT) == (0.0, "")
