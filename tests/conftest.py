"""One thread a process: for models this small, more of them only wait for each other."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, here and in the programs that tests start
