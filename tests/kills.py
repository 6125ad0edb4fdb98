"""Killed processes, for scripts of their own: it imports neither jax nor pytest, so that forking is safe."""

import os
import random
import signal
import time


def lines_of_killed(kills, work):
    """Forks so many processes one after the other, each killed soon after its first line.

    Args:
        kills: how many.
        work: called in each with its number and a file descriptor; it writes a line for whatever is done.

    Returns:
        The whole lines of all: the last one of each may be cut, what is whole was said after it was done.
    """
    finished = []
    for name in range(kills):
        come, go = os.pipe()
        child = os.fork()
        if not child:
            os.close(come)
            work(name, go)
        os.close(go)
        random.seed(name)
        with os.fdopen(come) as lines:
            first = lines.readline()  # what it writes to is open by now
            time.sleep(random.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            finished += [line[:-1] for line in [first, *lines] if line.endswith("\n")]
    return finished
