"""Argument specs as text and JSON: what is written reads back, and what is no spec is said."""

import collections
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoloop import _signature, _specfile
from autoloop._specfile import SpecError

ARRAYS = {
    "f32[3,4]": lambda: jnp.zeros((3, 4)),
    "f32[]": lambda: np.float32(1),
    "f32[0]": lambda: jnp.zeros(0),
    "i32[2]": lambda: jnp.zeros(2, int),
    "u8[1]": lambda: np.zeros(1, np.uint8),
    "bool[2]": lambda: jnp.zeros(2, bool),
    "bf16[2]": lambda: jnp.zeros(2, jnp.bfloat16),
    "f8_e4m3fn[2]": lambda: jnp.zeros(2, jnp.float8_e4m3fn),
    "c64[2]": lambda: jnp.zeros(2, complex),
    "key<fry>[]": lambda: jax.random.key(0),
    "key<fry>[2,3]": lambda: jax.random.split(jax.random.key(0), (2, 3)),
    "f32[]*": lambda: jnp.asarray(1.0),
}


@pytest.mark.parametrize("text", ARRAYS)
def test_an_array_is_written_and_read(text):
    value = ARRAYS[text]()
    assert _signature.aval_text(value) == text
    spec = _specfile.array(text)
    assert _signature.aval_text(spec) == text
    assert _signature.call_key(None, [spec], ()) == _signature.call_key(None, [value], ())


@pytest.mark.parametrize(
    "text", ["", "f32", "f32[", "f32[3,]", "f32[-1]", "f32[a]", "x[3]", "f33[3]", "str[3]", "object[1]", "key<x>[]"]
)
def test_what_is_no_array_is_said(text):
    with pytest.raises(SpecError, match=r"an array is written as|unknown dtype|unknown kind of key"):
        _specfile.array(text)


XS = jnp.zeros((3, 2))
SIGNATURES = {
    "nothing": ((), {}, {"args": []}),
    "one": ((XS,), {}, {"args": ["f32[3,2]"]}),
    "trees": (
        ({"w": XS, "b": [XS, None]}, (XS, 2)),
        {},
        {"args": [{"w": "f32[3,2]", "b": ["f32[3,2]", None]}, {"tuple": ["f32[3,2]", 2]}]},
    ),
    "keywords": ((0.5,), {"n": 3, "mode": "fast"}, {"args": [0.5], "kwargs": {"mode": {"value": "fast"}, "n": 3}}),
    "a dict with a mark": (({"tuple": XS},), {}, {"args": [{"dict": {"tuple": "f32[3,2]"}}]}),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_is_written_and_read(name):
    args, kwargs, data = SIGNATURES[name]
    assert _specfile.to_data(args, kwargs) == data
    read = _specfile.from_data(json.loads(json.dumps(data)))
    assert jax.tree.structure(read) == jax.tree.structure((args, kwargs))
    assert _specfile.to_data(*read) == data


Point = collections.namedtuple("Point", "x")


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1, [Point(XS)]), {}, "argument 1 holds a Point"),
        ((), {"f": np.sin}, "argument f holds a ufunc"),
        (({1: XS},), {}, "argument 0 holds a dict"),
    ],
)
def test_what_json_can_not_hold_is_named(args, kwargs, message):
    with pytest.raises(SpecError, match=message):
        _specfile.to_data(args, kwargs)


@pytest.mark.parametrize(
    "data",
    [{}, 3, "f32[3]", {"args": 3}, {"kwargs": []}, {"arg": []}, ["f32"], [{"tuple": 3}], [{"dict": 3}], None],
)
def test_what_is_no_signature_is_said(data):
    with pytest.raises(SpecError):
        _specfile.from_data(data)


def test_a_list_of_lists_or_objects_holds_several_signatures():
    one, two = ["f32[3]"], {"args": ["f32[4]"]}
    assert _specfile.several([one, two]) == [_specfile.from_data(one), _specfile.from_data(two)]
    assert _specfile.several(one) == _specfile.several({"args": one}) == [_specfile.from_data(one)]
    assert _specfile.several([]) == [((), {})]
