"""Processes that are killed, also late and orphaned ones, when the input of the guard is closed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unifier.trials import orphans
from unifier.trials.orphans import processes_using


@pytest.mark.slow
def test_guard_kills_late_and_orphaned_processes(tmp_path: Path) -> None:
    (folder := tmp_path / "used").mkdir()
    go = tmp_path / "go"
    script = f"(sleep 100 >{folder}/orphan &); while [ ! -e {go} ]; do sleep 0.01; done; exec sleep 100 >{folder}/late"
    guard_command = [sys.executable, "-S", orphans.__file__, str(folder), str(os.getsid(0)), str(os.getpid())]
    with (
        subprocess.Popen(["sh", "-c", script]) as parent,
        subprocess.Popen(["sleep", "100"]) as unrelated,
        (folder / "viewed").open("w") as viewed,
        subprocess.Popen(["sleep", "100"], stdout=viewed, start_new_session=True) as viewer,
        subprocess.Popen(guard_command, stdin=subprocess.PIPE, start_new_session=True) as guard,
    ):
        viewed.close()
        go.touch()
        end = time.monotonic() + 10
        while not (folder / "late").exists() and time.monotonic() < end:
            time.sleep(0.01)
        assert len(processes_using(str(folder), os.getsid(0))) == 2, "the orphan and the late process"
        guard.communicate(timeout=10)
        assert parent.wait(timeout=10) == -9
        assert not processes_using(str(folder), os.getsid(0))
        assert unrelated.poll() is None
        assert viewer.poll() is None, "a person who reads the files in another terminal keeps the program"
        unrelated.kill()
        viewer.kill()
