"""What becomes of tasks: again, in halves, or left out; which are late. And folders that are made once, on a disk or in
an object store."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod
from pathlib import Path
from threading import Barrier

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ralm.distributed.artifact_store import DiskStore, ObjectStore, remove_partial
from ralm.distributed.cluster import MAX_CRASHES, ClusterJob, TaskQueue
from ralm.errors import StorageError
from ralm.storage.remote import RemoteFolder


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def halves(task: range) -> Sequence[range] | None:
    middle = (task.start + task.stop) // 2
    return None if len(task) < 2 else (range(task.start, middle), range(middle, task.stop))


def queue(*tasks: range) -> TaskQueue[range]:
    return TaskQueue(tasks, str, halves)


def run(work: TaskQueue[range], poison: set[int], most: int = 3) -> tuple[list[range], list[range], int]:
    """Run the tasks, several at a time, of which the last one ends first; returns those done, in order, those left
    out, and all tries."""
    done: dict[tuple[int, ...], range] = {}
    bad: list[range] = []
    running: list[ClusterJob[range]] = []
    tries = 0
    while not work.is_done:
        while len(running) < most and (job := work.begin(0)):
            running.append(job)
        job, tries = running.pop(), tries + 1
        if not poison & {*job.task}:
            work.finish(job, 1)
            done[job.place] = job.task
        elif not work.crashed(job):
            bad.append(job.task)
    return [done[place] for place in sorted(done)], bad, tries


def test_tasks_are_done_in_order() -> None:
    tasks = [range(5), range(5, 9), range(9, 10)]
    assert run(queue(*tasks), set()) == (tasks, [], 3)


@pytest.mark.parametrize("poison", [{0}, {63}, {31, 32}, {70}, {5, 70, 99}])
def test_what_is_poisoned_is_left_out_and_nothing_else(poison: set[int]) -> None:
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
        assert work.crashed(job)
    job = work.begin(0)
    assert job is not None
    assert job.task == range(8)


def test_a_task_without_halves_is_left_out() -> None:
    assert run(TaskQueue([range(8)], str, lambda _: None), {3}) == ([], [range(8)], MAX_CRASHES)


def test_a_lost_machine_is_not_the_tasks_fault_unless_it_always_is() -> None:
    work = queue(range(1))
    losses = 0
    while (job := work.begin(0)) is not None and work.lost(job):
        losses += 1
        assert losses < 50
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


def test_nothing_has_the_name_of_a_folder_that_was_not_finished(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "content").write_text("x")
        assert not (tmp_path / "part").exists()
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        DiskStore(tmp_path).make("part", fail)
    assert names(tmp_path) == []
    (tmp_path / "part.0.partial").mkdir()  # of a process that was killed
    remove_partial(tmp_path)
    assert names(tmp_path) == []


def test_of_two_that_make_a_folder_the_first_counts(tmp_path: Path) -> None:
    both = Barrier(2)

    def make(folder: Path) -> None:
        (folder / "content").write_text("x")
        both.wait(10)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: DiskStore(tmp_path).make("part", make), range(2)))
    DiskStore(tmp_path).make("part", lambda _: pytest.fail("it is there"))
    assert names(tmp_path) == ["part"]
    assert (tmp_path / "part" / "content").read_text() == "x"


@pytest.fixture
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """An object store, empty, in memory."""
    return ObjectStore(RemoteFolder(f"memory://{request.node.name}"))


def fill(folder: Path) -> None:
    (folder / "within").mkdir()
    (folder / "content").write_text("x")
    (folder / "within" / "more").write_bytes(bytes(range(256)) * 9000)


def test_a_folder_of_a_store_is_made_once_and_copied(store: ObjectStore, tmp_path: Path) -> None:
    store.make("parts/a", fill)
    store.make("parts/a", lambda _: pytest.fail("it is there"))
    store.make("parts/b", lambda folder: None)
    with ObjectStore(store.folder, tmp_path).folders(["parts/a", "parts/b"]) as copies:
        assert (copies[0] / "content").read_text() == "x"
        assert (copies[0] / "within" / "more").read_bytes() == bytes(range(256)) * 9000
        assert len(names(tmp_path)) == 1
    assert names(tmp_path) == []
    assert store.read("parts/a", "content") == b"x"
    assert not store.is_marked("a.halved")
    store.mark("a.halved")
    assert store.is_marked("a.halved")
    store.folder.remove()
    store.folder.remove()
    assert not store.is_marked("a.halved")


def test_a_folder_of_a_store_that_was_not_finished_is_made_again(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed between two files, or as it was being made."""
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "put_file", partialmethod(failing_second, MemoryFileSystem.put_file))
        with pytest.raises(StorageError, match=r"memory://\S+/parts/a cannot be used: 'the connection was lost'"):
            store.make("parts/a", fill)
    assert store.read("parts/a", "content") == b"x", "a part of it is there"
    store.make("parts/a", fill)
    with store.folders(["parts/a"]) as (copy,):
        assert (copy / "within" / "more").stat().st_size == 256 * 9000


def failing_second(system: MemoryFileSystem, put: Callable[..., None], source: str, to: str) -> None:
    if to.endswith("more"):
        raise KeyError("the connection was lost")
    put(system, source, to)


def test_what_a_killed_process_leaves_on_its_machine_goes(store: ObjectStore, tmp_path: Path) -> None:
    for name in ("left", "new"):
        (tmp_path / f"ralm-{name}.partial" / "content").mkdir(parents=True)
    os.utime(tmp_path / "ralm-left.partial", (0, 0))
    own = ObjectStore(store.folder, tmp_path)
    own.make("a", lambda _: None)
    assert names(tmp_path) == ["ralm-new.partial"], "one that was made just now may not be held yet"

    def make(folder: Path) -> None:
        os.utime(folder.parent, (0, 0))
        own.make("c", lambda _: None)
        assert folder.exists(), "a process that is running holds it"

    own.make("b", make)


def test_a_store_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = ObjectStore(RemoteFolder(f"file://{tmp_path}/file/below"))
    with pytest.raises(StorageError, match=r"file://\S+/file/below\S* cannot be used: .*Not a directory"):
        store.mark("x")
    with pytest.raises(StorageError, match=r"file://\S+/nothing/a does not exist"):
        ObjectStore(RemoteFolder(f"file://{tmp_path}/nothing")).read("a", "x")
