"""The pace of watched loops, on a fake clock, a fake device and a fake bar."""

import pytest

from autoloop._pace import Pace


class World:
    """A device that takes `step_s` an iteration, `dispatch_s` a step, a bar that takes `bar_s`."""

    def __init__(self, step_s, dispatch_s=50e-6, bar_s=200e-6):
        self.now, self.step_s, self.dispatch_s, self.bar_s = 0.0, step_s, dispatch_s, bar_s
        self.left, self.bars, self.lost = 0, [], 0.0

    def clock(self):
        return self.now

    def block_until_ready(self):
        self.now += self.left * self.step_s
        self.left = 0

    def open_bar(self):
        self.bars.append(Bar(self))
        return self.bars[-1]

    def run(self, pace, length, given=1):
        """The steps of one call."""
        pace.open_bar = self.open_bar
        pace.begin()
        left = length
        while left:
            count = pace.step(given, left)
            self.now += self.dispatch_s
            self.left += count
            pace.ran(count, self)
            left -= count
        pace.finish()
        pace.end()
        return self.bars[-1]


class Bar:
    def __init__(self, world):
        self.world, self.moves, self.n, self.closed = world, [], 0, False

    def update(self, n):
        self.world.now += self.world.bar_s
        self.n += n
        self.moves.append((self.world.now, n))

    def close(self):
        self.closed = True


@pytest.mark.parametrize("step_s", [1e-7, 3e-6, 1e-3, 0.02, 0.4, 7.0])
def test_the_bar_moves_several_times_a_second_and_costs_under_one_percent(step_s):
    world, length = World(step_s), round(40 / step_s)
    pace = Pace(length, True, world.clock)
    bar = world.run(pace, length)
    assert bar.n == length
    assert bar.closed
    settled = [(b[0] - a[0], b[1]) for a, b in zip(bar.moves[5:-2], bar.moves[6:-1], strict=True)]
    assert len(settled) > 2 or step_s > 1
    for apart_s, n in settled:
        assert apart_s < 0.34 or n == 1
        assert world.bar_s + world.dispatch_s < 0.01 * apart_s


def test_a_costly_bar_moves_less_often():
    cheap, dear = World(1e-4), World(1e-4, bar_s=7e-4)
    paces = [Pace(10**6, True, world.clock) for world in (cheap, dear)]
    for world, pace in zip((cheap, dear), paces, strict=True):
        world.run(pace, 10**6)
    assert [pace.count for pace in paces] == [1024, 2048]


def test_what_was_learned_holds_for_the_next_call():
    world = World(1e-3)
    pace = Pace(1000, True, world.clock)
    world.run(pace, 1000)
    second = world.run(pace, 1000)
    assert {n for _, n in second.moves} == {128, 1000 % 128}


def test_the_first_step_of_a_length_compiles_and_is_not_measured():
    world = World(10.0)
    pace = Pace(100, True, world.clock)
    pace.open_bar = world.open_bar
    pace.begin()
    for took_s, count in [(10.0, 1), (0.001, 128)]:
        world.step_s, world.left = took_s, 1
        pace.ran(pace.count, world)
        assert pace.count == min(count, 100)


def test_iterations_that_become_slower_shorten_the_steps():
    world = World(1e-4)
    pace = Pace(10**6, True, world.clock)
    world.run(pace, 20_000)
    assert pace.count == 1024
    world.step_s = 1e-2
    world.run(pace, 20_000)
    assert pace.count == 16


def test_steps_of_a_plan_in_force_keep_their_length_and_are_looked_at_less_often():
    world = World(1e-4)
    pace = Pace(10_000, False, world.clock)
    bar = world.run(pace, 10_000, given=16)
    assert bar.n == 10_000
    assert all(n % 16 == 0 for _, n in bar.moves)
    assert max(n for _, n in bar.moves) == 1024


def test_a_clock_that_stands_still_is_no_division_by_zero():
    pace = Pace(100, True, lambda: 0.0)
    world = World(0.0)
    world.run(pace, 100)
    assert pace.count == 100


def test_ending_before_the_loop_began_closes_nothing():
    Pace(3, True).end()
