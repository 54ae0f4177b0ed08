"""Processes that are killed with their late children when the input of the guard is closed."""

import subprocess
import sys
import time
from pathlib import Path

from unifier.trials import process_tree
from unifier.trials.process_tree import with_descendants


def test_guard_kills_children_that_start_after_the_guard(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.01; done; sleep 100 & sleep 100"
    with subprocess.Popen(["sh", "-c", script]) as parent:
        guard = subprocess.Popen([sys.executable, "-S", process_tree.__file__, str(parent.pid)], stdin=subprocess.PIPE)
        go.touch()
        end = time.monotonic() + 10
        while len(with_descendants([parent.pid])) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        children = with_descendants([parent.pid]) - {parent.pid}
        assert len(children) >= 2
        guard.communicate(timeout=10)
        assert parent.wait(timeout=10) == -9
    while any(map(is_running, children)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(map(is_running, children))


def is_running(process: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
