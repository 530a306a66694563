"""What becomes of tasks: again, in halves, or an error; which are late."""

from collections.abc import Sequence

import pytest

from ralm.distributed.cluster import MAX_CRASHES, ClusterJob, TaskQueue
from ralm.errors import ClusterError


def halves(task: range) -> Sequence[range] | None:
    middle = (task.start + task.stop) // 2
    return None if len(task) < 2 else (range(task.start, middle), range(middle, task.stop))


def queue(*tasks: range) -> TaskQueue[range]:
    return TaskQueue(tasks, str, halves)


def run(work: TaskQueue[range], poison: set[int], most: int = 3) -> tuple[list[range], list[range], int]:
    """Run the tasks, several at a time, of which the last one ends first; returns those done, in order, those that are
    errors, and all tries."""
    done: list[range] = []
    bad: list[range] = []
    running: list[ClusterJob[range]] = []
    tries = 0
    while not work.is_done:
        while len(running) < most and (job := work.begin(0)):
            running.append(job)
        job, tries = running.pop(), tries + 1
        if not poison & {*job.task}:
            work.finish(job, 1)
            done.append(job.task)
            continue
        try:
            work.crashed(job)
        except ClusterError:
            bad.append(job.task)
    return sorted(done, key=lambda task: task.start), bad, tries


def test_tasks_are_done_once() -> None:
    tasks = [range(5), range(5, 9), range(9, 10)]
    assert run(queue(*tasks), set()) == (tasks, [], 3)


@pytest.mark.parametrize("poison", [{0}, {63}, {31, 32}, {70}, {5, 70, 99}])
def test_what_is_poisoned_is_an_error_and_nothing_else(poison: set[int]) -> None:
    done, bad, tries = run(queue(range(64), range(64, 100)), poison)
    assert sorted(number for one in bad for number in one) == sorted(poison)
    assert all(len(one) == 1 for one in bad)
    assert [number for task in done for number in task] == [n for n in range(100) if n not in poison]
    assert tries <= len(poison) * (2 * MAX_CRASHES + 2 * 7) + 2, "halving, not trying each"


def test_a_task_that_crashes_by_chance_is_not_halved() -> None:
    work = queue(range(8))
    for _ in range(MAX_CRASHES - 1):
        job = work.begin(0)
        assert job is not None
        work.crashed(job)
    job = work.begin(0)
    assert job is not None
    assert job.task == range(8)


def test_a_task_without_halves_is_an_error() -> None:
    assert run(TaskQueue([range(8)], str, lambda _: None), {3}) == ([], [range(8)], MAX_CRASHES)


def test_a_lost_machine_is_not_the_tasks_fault_unless_it_always_is() -> None:
    work = queue(range(1))
    losses = 0
    said = r"range\(0, 1\) ends its process, each of 3 times; the machines may have too little memory\."
    with pytest.raises(ClusterError, match=said):
        while (job := work.begin(0)) is not None and losses < 50:
            work.lost(job)
            losses += 1
    assert losses > 2 * MAX_CRASHES
    assert work.is_done


def test_stragglers_are_named_once(recwarn: pytest.WarningsRecorder) -> None:
    work = queue(*(range(n, n + 1) for n in range(5)))
    jobs = [job for _ in range(5) if (job := work.begin(100.0))]
    for job in jobs[:3]:
        work.finish(job, 110.0)
    work.warn_of_stragglers(129.0)
    assert not recwarn.list
    for _ in range(2):
        work.warn_of_stragglers(145.0)
    late = "range({}, {}) has taken 45 s so far, where others took 10 s."
    assert [str(one.message) for one in recwarn] == [late.format(3, 4), late.format(4, 5)]
