"""Records survive being stored, and nothing else passes for a record."""

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoloop import _records
from autoloop._records import SCHEMA, Budget, Record, RecordError, Status, Trial

TRIAL = Trial(
    plan="0=unroll(8)",
    reason="",
    trace_s=0.1,
    compile_s=1.5,
    run_s=1e-3,
    run_low_s=0.9e-3,
    run_high_s=1.1e-3,
    ratio=0.5,
    ratio_low=0.4,
    ratio_high=0.6,
    rounds=20,
    peak_bytes=10**12,
    max_error=1e-7,
    spent_s=3,
    breakeven_calls=1234.5,
)
RECORD = Record(
    function="module.train",
    key={"jax": "1.2", "shapes": "f32[3]"},
    winner="0=unroll(8)",
    trials=(Trial("as-written"), TRIAL, Trial("0=inline", Status.WRONG, "output 0 is off")),
    verdict="0=unroll(8) is 2x faster",
    complete=False,
    spent_s=4.25,
    budget_s=30,
    expected_calls=100,
    created="2026-01-02T03:04:05Z",
    notes=("the device was busy",),
    environment={"device": "cpu"},
)

numbers = st.floats(0, 1e300) | st.integers(0, 10**15)
optional = st.none() | numbers
trials = st.builds(
    Trial,
    plan=st.text(max_size=9),
    status=st.sampled_from(Status),
    reason=st.text(max_size=9),
    trace_s=optional,
    compile_s=optional,
    run_s=optional,
    ratio=optional,
    rounds=st.integers(0, 10**6),
    peak_bytes=st.none() | st.integers(0, 2**60),
    max_error=optional,
    spent_s=numbers,
    breakeven_calls=optional,
)
pairs = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)


@st.composite
def records(draw):
    found = tuple(draw(st.lists(trials, min_size=1, max_size=3)))
    return Record(
        function=draw(st.text(max_size=9)),
        key=draw(pairs),
        winner=draw(st.sampled_from(found)).plan,
        trials=found,
        complete=draw(st.booleans()),
        spent_s=draw(numbers),
        expected_calls=draw(st.none() | st.integers(1, 10**9)),
        notes=tuple(draw(st.lists(st.text(max_size=5), max_size=2))),
        environment=draw(pairs),
    )


# ---------------------------------------------------------------- there and back


@settings(deadline=None)
@given(records())
def test_a_record_reads_back_as_itself(record):
    again = Record.from_json(record.to_json())
    assert again == record
    assert again.to_json() == record.to_json()
    assert Record.from_dict(record.to_dict()) == record


def test_a_record_is_one_line_of_sorted_json():
    text = RECORD.to_json()
    data = json.loads(text)
    assert "\n" not in text
    assert list(data) == sorted(data)
    assert list(data["trials"][0]) == sorted(data["trials"][0])
    assert data["trials"][2]["status"] == "wrong"
    assert data["schema"] == SCHEMA


def test_a_record_read_back_has_the_same_types():
    again = Record.from_json(RECORD.to_json())
    assert again == RECORD
    assert type(again.trials) is type(again.notes) is tuple
    assert all(type(trial) is Trial for trial in again.trials)
    assert again.trials[2].status is Status.WRONG
    assert hash(again.trials) == hash(RECORD.trials)


def test_a_dict_is_a_copy():
    data = RECORD.to_dict()
    data["key"]["jax"] = data["environment"]["device"] = "changed"
    data["trials"][0]["plan"] = "changed"
    assert (RECORD.key["jax"], RECORD.environment["device"], RECORD.trials[0].plan) == ("1.2", "cpu", "as-written")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_has_not_is_not_written(value):
    with pytest.raises(ValueError, match="JSON compliant"):
        RECORD.replace(spent_s=value).to_json()


# ---------------------------------------------------------------- questions to a record


def test_the_trial_of_a_plan():
    assert RECORD.trial("0=unroll(8)") is TRIAL
    assert RECORD.trial("as-written") == Trial("as-written")
    assert RECORD.trial("0=eager") is None


def test_copies_with_changes():
    assert RECORD.replace(winner="as-written") == dataclasses.replace(RECORD, winner="as-written")
    assert TRIAL.replace(run_s=None).run_s is None
    assert TRIAL.run_s == 1e-3


@pytest.mark.parametrize("status", Status)
def test_only_an_ok_trial_is_ok(status):
    assert Trial("0=inline", status).ok == (status == "ok")


@pytest.mark.parametrize(
    ("trace_s", "compile_s", "build_s"), [(None, None, 0), (1.5, None, 1.5), (None, 2, 2), (1.5, 2, 3.5)]
)
def test_seconds_before_a_first_run(trace_s, compile_s, build_s):
    assert Trial("0=inline", trace_s=trace_s, compile_s=compile_s).build_s == build_s


def test_nouns_are_frozen():
    for noun in (TRIAL, RECORD, Budget()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(noun, dataclasses.fields(noun)[0].name, "changed")


def test_what_is_raised_is_also_a_builtin():
    for error, base in [
        (_records.MissError, RuntimeError),
        (_records.RecordError, ValueError),
        (_records.UnsupportedJaxError, RuntimeError),
        (_records.AutoloopWarning, UserWarning),
    ]:
        assert issubclass(error, base)


# ---------------------------------------------------------------- what is no record


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "record is not JSON: Expecting value"),
        ("{", "record is not JSON: Expecting property name"),
        ('{"a": 1', "record is not JSON: Expecting ',' delimiter"),
        ("\x80\x04K\x01.", "record is not JSON: Expecting value"),
        (None, "record is not JSON: the JSON object must be str, bytes or bytearray, not NoneType"),
        ("[" * 10**5, "record is not JSON: "),
        ("[]", "record must be a JSON object, is list"),
        ("null", "record must be a JSON object, is NoneType"),
        ('"text"', "record must be a JSON object, is str"),
        ("3", "record must be a JSON object, is int"),
        ("{}", "record has missing or unknown fields: budget_s, complete, created, environment, "),
    ],
)
def test_texts_that_are_no_record(text, message):
    with pytest.raises(RecordError) as caught:
        Record.from_json(text)
    assert str(caught.value).startswith(message)


FIELDS = [field.name for field in dataclasses.fields(Record)]
TRIAL_FIELDS = [field.name for field in dataclasses.fields(Trial)]


@pytest.mark.parametrize("name", FIELDS)
def test_a_missing_field(name):
    data = RECORD.to_dict()
    del data[name]
    with pytest.raises(RecordError, match=rf"^record has missing or unknown fields: {name}$"):
        Record.from_dict(data)


@pytest.mark.parametrize("name", TRIAL_FIELDS)
def test_a_missing_field_of_a_trial(name):
    data = RECORD.to_dict()
    del data["trials"][1][name]
    with pytest.raises(RecordError, match=rf"^trial has missing or unknown fields: {name}$"):
        Record.from_dict(data)


def test_unknown_fields():
    with pytest.raises(RecordError, match=r"^record has missing or unknown fields: color, taste$"):
        Record.from_dict({**RECORD.to_dict(), "taste": 1, "color": 2})
    data = RECORD.to_dict()
    data["trials"][0]["color"] = 1
    with pytest.raises(RecordError, match=r"^trial has missing or unknown fields: color$"):
        Record.from_dict(data)


WRONG = {
    "str": [3, None, ["a"], {}, True],
    "int": ["3", None, 2.5, [], True],
    "bool": ["true", None, 1, 0.0],
    "float": ["3", None, [], True],
    "float | None": ["3", [], False],
    "int | None": ["3", 2.5, {}, True],
    "Status": [None, 3],
    "Mapping[str, str]": [None, [], "a"],
    "tuple[Trial, ...]": [None, {}, "a"],
    "tuple[str, ...]": [None, {}, "a"],
}


def wrong_values(noun):
    return [
        pytest.param(field.name, field.type, value, id=f"{field.name}={value!r}")
        for field in dataclasses.fields(noun)
        for value in WRONG[field.type]
    ]


@pytest.mark.parametrize(("name", "kind", "value"), wrong_values(Record))
def test_a_field_of_another_type(name, kind, value):
    with pytest.raises(RecordError) as caught:
        Record.from_dict({**RECORD.to_dict(), name: value})
    assert str(caught.value) == f"record field {name!r} must be {kind}, is {value!r}"


@pytest.mark.parametrize(("name", "kind", "value"), wrong_values(Trial))
def test_a_field_of_a_trial_of_another_type(name, kind, value):
    data = RECORD.to_dict()
    data["trials"][1][name] = value
    with pytest.raises(RecordError) as caught:
        Record.from_dict(data)
    assert str(caught.value) == f"trial field {name!r} must be {kind}, is {value!r}"


def test_a_long_value_is_not_printed_whole():
    with pytest.raises(RecordError) as caught:
        Record.from_dict({**RECORD.to_dict(), "spent_s": "x" * 10**6})
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_not_finite(text):
    written = RECORD.to_json().replace('"spent_s": 4.25', f'"spent_s": {text}')
    assert written != RECORD.to_json()
    with pytest.raises(RecordError, match=r"^record field 'spent_s' must be finite, is (nan|-?inf)$"):
        Record.from_json(written)


@pytest.mark.parametrize("entry", [None, 3, "0=inline", ["0=inline"]])
def test_a_trial_that_is_none(entry):
    message = f"^trial must be a JSON object, is {type(entry).__name__}$"
    with pytest.raises(RecordError, match=message):
        Record.from_dict({**RECORD.to_dict(), "trials": [entry]})


@pytest.mark.parametrize("status", ["OK", "", "fine", "x" * 1000])
def test_an_unknown_status(status):
    data = RECORD.to_dict()
    data["trials"][1]["status"] = status
    with pytest.raises(RecordError, match=r"^trial status must be one of ") as caught:
        Record.from_dict(data)
    message = str(caught.value)
    assert message.startswith("trial status must be one of ['ok', 'wrong', 'failed', 'skipped'], is '")
    assert len(message) < 150


@pytest.mark.parametrize("schema", [SCHEMA + 1, 0, -1])
def test_another_schema(schema):
    with pytest.raises(RecordError, match=f"^record schema is {schema}, this version reads {SCHEMA}$"):
        Record.from_dict({**RECORD.to_dict(), "schema": schema})


@pytest.mark.parametrize("name", ["key", "environment"])
@pytest.mark.parametrize("mapping", [{"a": 1}, {"a": None}, {"a": "b", "c": ["d"]}, {1: "a"}])
def test_mappings_of_other_things(name, mapping):
    with pytest.raises(RecordError, match=f"^record field '{name}' must map texts to texts$"):
        Record.from_dict({**RECORD.to_dict(), name: mapping})


@pytest.mark.parametrize("notes", [[1], ["a", None], [["a"]]])
def test_notes_that_are_no_texts(notes):
    with pytest.raises(RecordError, match=r"^record field 'notes' must hold texts$"):
        Record.from_dict({**RECORD.to_dict(), "notes": notes})


@pytest.mark.parametrize("winner", ["0=eager", ""])
def test_a_winner_without_a_trial(winner):
    with pytest.raises(RecordError, match=f"^record names the winner '{winner}', which has no trial$"):
        Record.from_dict({**RECORD.to_dict(), "winner": winner})


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
        max_leaves=6,
    ),
    st.sampled_from(FIELDS),
)
def test_whatever_stands_in_a_field_is_read_or_refused(value, name):
    try:
        record = Record.from_json(json.dumps({**RECORD.to_dict(), name: value}))
    except RecordError:
        return
    assert Record.from_json(record.to_json()) == record
