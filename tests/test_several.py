"""What processes that disagree decide together: each one is a thread here, with a store and timings of its own."""

import contextlib
import threading
import warnings

import jax
import jax.numpy as jnp
import pytest
from helpers import assert_same, ramp
from jax import lax
from test_together import Board, at_once

from autoloop import (
    AutoloopWarning,
    MissError,
    _decide,
    _dispatch,
    _processes,
    _runner,
    _several,
    _signature,
    _stores,
    autoloop,
)
from autoloop import settings as set_for
from autoloop._call import Call
from autoloop._plan import Plan
from autoloop._program import Program

XS = ramp(3, 2)


def total(xs):
    return lax.scan(lambda c, x: (c * 0.5 + x, c.sum()), jnp.zeros(xs.shape[1:]), xs)


class Processes:
    """Some processes of one program, each with its own wrapper of a function and its own store."""

    def __init__(self, folder, count=2, shared=True, transport=True, **options):
        self.board, self.own = Board(), threading.local()
        self.functions, self.folders = [], [str(folder / str(rank)) for rank in range(count)]
        for rank in range(count):
            fun = autoloop(total, **{"forms": ["inline"], **options})
            members = _processes.Group(self.board if transport else None, tuple(range(count)), rank, shared)
            fun._decider._several = _several.Several(lambda places, g=members: g, _several._Names())
            self.functions.append(fun)

    @contextlib.contextmanager
    def being(self, rank, **given):
        """In this block the thread is one of the processes."""
        self.own.rank = rank
        with set_for(cache_dir=self.folders[rank], **given):
            yield self.functions[rank]

    def run(self, work=lambda fun: fun(XS), only=None, **given):
        """What `work` gives or raises in each process, at once."""

        def part(rank):
            with self.being(rank, **given):
                return work(self.functions[rank])

        ranks = range(len(self.functions)) if only is None else only
        return at_once(*(lambda r=r: part(r) for r in ranks))

    def stored(self, rank):
        with self.being(rank):
            return dict(_stores.store_of(_dispatch._config.current()).items())

    def store(self, rank, winner, source):
        """Puts a record into one process's store, like that of `source` but for the winner."""
        ((key, record),) = self.stored(source).items()
        trials = (*record.trials[:1], record.trials[1].replace(plan=winner))
        with self.being(rank):
            _stores.store_of(_dispatch._config.current()).put(key, record.replace(winner=winner, trials=trials))

    def plans(self):
        return [None if plan is None else str(plan) for plan in self.run(lambda fun: fun.plan(XS))]


@pytest.fixture
def processes(tmp_path, quick):
    return lambda count=2, name="a", **options: Processes(tmp_path / name, count, **options)


@pytest.fixture
def told():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: [str(w.message) for w in caught if issubclass(w.category, AutoloopWarning)]


def all_same(found):
    wanted = jax.jit(total)(XS)
    for one in found:
        assert_same(wanted, one)


@pytest.mark.parametrize("form", ["inline", "python"])
@pytest.mark.parametrize("count", [2, 4])
def test_all_take_the_plan_that_all_measured(count, form, processes, tunings):
    some = processes(count, forms=[form])
    for _ in range(2):
        all_same(some.run())
    assert len(set(some.plans())) == 1
    assert some.plans()[0].startswith(f"0={form}")
    assert len(tunings) == 1
    assert [len(some.stored(rank)) for rank in range(count)] == [1] + [0] * (count - 1)
    (record,) = some.stored(0).values()
    assert any("the slowest process's" in note for note in record.notes)


def test_the_store_of_the_one_that_decides_counts(processes, tunings):
    first = processes()
    first.run()
    some = processes(name="b", forms=["inline", "unroll"])
    some.folders[0], some.folders[1] = first.folders[0], first.folders[1]
    first.store(1, "0=unroll(2)", source=0)
    again = processes()  # the same options: their records are for these
    all_same(again.run())
    assert again.plans() == ["0=inline", "0=inline"]
    assert len(tunings) == 1
    assert [record.winner for record in again.stored(1).values()] == ["0=unroll(2)"]


def without_the_leader_s_store(some, processes):
    """The same processes anew, the deciding one's store emptied."""
    with some.being(0):
        _stores.store_of(_dispatch._config.current()).clear()
    return processes()


def test_a_record_of_another_process_does_not_stop_the_tuning(processes, tunings):
    some = processes()
    some.run()
    some.store(1, "as-written", source=0)
    again = without_the_leader_s_store(some, processes)
    all_same(again.run())
    assert again.plans() == ["0=inline", "0=inline"]
    assert len(tunings) == 2


SECONDS = {
    "one is fast elsewhere only": [{"as-written": 1e-2, "0=inline": 2e-2}, {"as-written": 1e-2, "0=inline": 1e-3}],
    "one is fast here only": [{"as-written": 1e-2, "0=inline": 1e-3}, {"as-written": 1e-2, "0=inline": 2e-2}],
    "all are fast": [{"as-written": 1e-2, "0=inline": 1e-3}, {"as-written": 2e-2, "0=inline": 2e-3}],
}


@pytest.mark.parametrize("name", SECONDS)
def test_the_cost_of_a_plan_is_that_of_the_slowest_process(name, tmp_path, monkeypatch):
    some = Processes(tmp_path, budget_s=300)
    monkeypatch.setattr(_runner.Runner, "sample", lambda self, plan, calls: SECONDS[name][some.own.rank][str(plan)])
    all_same(some.run())
    assert some.plans() == ["0=inline" if name == "all are fast" else "as-written"] * 2
    (record,) = some.stored(0).values()
    slowest = {plan: max(table[plan] for table in SECONDS[name]) for plan in SECONDS[name][0]}
    assert {trial.plan: trial.run_s for trial in record.trials} == pytest.approx(slowest)


def refuse(some, rank, monkeypatch):
    real = Program.why_not
    monkeypatch.setattr(
        Program, "why_not", lambda self, plan: "it is not to my liking" if some.own.rank == rank else real(self, plan)
    )


def test_a_plan_that_does_not_fit_everywhere_runs_nowhere(processes, told, monkeypatch):
    some = processes(3)
    refuse(some, 2, monkeypatch)
    for _ in range(2):
        all_same(some.run())
    assert some.plans() == ["as-written"] * 3
    assert len(told()) == 3  # one in each process
    assert all("process 2 can't run 0=inline: it is not to my liking; all of them run as written" in t for t in told())
    with some.being(1) as fun:
        assert "did not agree" in fun.report(XS).verdict


def test_another_program_under_the_same_name_runs_as_written(processes, told, monkeypatch):
    some = processes()
    real = _several._hash
    monkeypatch.setattr(_several, "_hash", lambda *args: real(*args) + str(some.own.rank))
    all_same(some.run())
    assert some.plans() == ["as-written"] * 2
    assert all("process 1 runs another program" in text for text in told())


@pytest.mark.parametrize("absent", [0, 1])
def test_who_waits_in_vain_runs_as_written_and_so_does_who_comes_late(absent, processes, told, monkeypatch):
    monkeypatch.setattr(_several, "_JOIN_S", 0.2)
    some = processes(shared=False)
    all_same(some.run(only=[1 - absent]))
    assert len(told()) == 1
    late = some.run(only=[absent])
    all_same(late)
    assert some.plans() == ["as-written"] * 2
    assert len(told()) == 2


def test_who_waited_in_vain_once_does_not_wait_again(processes, told, monkeypatch):
    monkeypatch.setattr(_several, "_JOIN_S", 0.2)
    some = processes(shared=False)
    some.run(only=[0])
    monkeypatch.setattr(_several, "_JOIN_S", 1e6)
    some.board.wait_s = 60.0
    other = ramp(5, 2)
    for one in some.run(lambda fun: fun(other)):
        assert_same(jax.jit(total)(other), one)
    assert len(told()) == 2


def test_processes_without_a_common_service_run_as_written(processes, told):
    some = processes(transport=False)
    all_same(some.run())
    assert some.plans() == ["as-written"] * 2
    assert all("they were not started by jax.distributed.initialize" in text for text in told())


def test_a_leader_that_may_not_tune_says_so_to_all(processes):
    some = processes()
    found = some.run(mode="cached")
    all_same(found)
    assert some.plans() == [None, None]


def test_a_miss_that_is_an_error_for_the_leader_stops_all(processes, told):
    some = processes()
    first, second = some.run(mode="strict")
    assert isinstance(first, MissError)
    all_same([second])
    assert len(told()) == 1


def test_a_tuning_that_fails_leaves_all_as_written(processes, told, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no search today")

    monkeypatch.setattr(_several._tune._search, "search", fail)
    some = processes()
    all_same(some.run())
    assert some.plans() == ["as-written"] * 2


def test_the_function_failing_as_written_in_one_process_fails_the_tuning_only(processes, told, monkeypatch):
    some, real = processes(), _runner.Runner.first

    def first(self, plan):
        if some.own.rank == 1:
            raise ValueError("not here")
        return real(self, plan)

    monkeypatch.setattr(_runner.Runner, "first", first)
    all_same(some.run())
    assert some.plans() == ["as-written"] * 2
    assert any("process 1: ValueError: not here" in text for text in told())


def test_an_interrupt_of_the_leader_ends_the_others_wait(processes, told, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(_several._tune._search, "search", interrupt)
    some = processes()
    first, second = some.run()
    assert isinstance(first, KeyboardInterrupt)
    all_same([second])


# ------------------------------------------------ in a trace


def scans(fun):
    return str(jax.make_jaxpr(lambda xs: fun(xs))(XS)).count("scan[")


def test_in_a_trace_all_use_the_record_of_the_one_that_decides(processes, tunings):
    processes().run()
    some = processes()
    assert some.run(scans) == [0, 0]
    assert len(tunings) == 1
    assert some.plans() == ["0=inline", "0=inline"]


def test_in_a_trace_a_record_of_another_process_does_not_count(processes, tunings):
    some = processes()
    some.run()
    some.store(1, "0=inline", source=0)
    again = without_the_leader_s_store(some, processes)
    assert again.run(scans) == [1, 1]
    held = len(again.board.texts)
    assert again.run(scans) == [1, 1]
    assert len(again.board.texts) == held  # that there is none is remembered
    all_same(again.run())
    assert again.run(scans) == [0, 0]


# ------------------------------------------------ what is left


def test_forgetting_in_all_processes_lets_them_agree_anew(processes, tunings):
    some = processes()
    some.run()
    some.run(lambda fun: fun.forget())
    assert some.plans() == [None, None]
    all_same(some.run())
    assert some.plans() == ["0=inline", "0=inline"]
    assert len(tunings) == 2


def test_asking_for_the_plan_shows_only_what_was_agreed(processes):
    processes().run()
    again = processes()
    assert again.plans() == [None, None]


def test_the_first_whole_call_is_judged_by_the_slowest_process(processes):
    some = processes()
    some.run()

    def confirm(fun):
        call, current = Call.of(fun._function, (XS,), {}), _dispatch._config.current()
        name = fun._decider._name(call, current)
        fun._decider._known[name] = _decide.replace(fun._decider._known[name], whole_s=1.0)
        return str(fun._decider.confirm(call, current, 0.5 if some.own.rank == 0 else 2.0).plan)

    assert some.run(confirm) == ["as-written", "as-written"]


def test_names_of_talks_do_not_depend_on_the_host():
    names = _several._COMMON_PARTS
    assert "host" not in names
    assert {"program", "arguments", "statics"} <= set(names)
    call = Call.of(autoloop(total)._function, (XS,), {})
    program = Program.trace(autoloop(total)._function, call.key, call.args, call.kwargs)
    assert set(names) <= set(_signature.parts(program.traced, call.key, call.places, ""))


def test_a_plan_text_survives_the_way(processes):
    some = processes(forms=["unroll"])
    all_same(some.run())
    assert len({Plan.parse(text) for text in some.plans()}) == 1
