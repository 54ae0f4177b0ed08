"""Run the command line as `python -m unifier`."""

import sys

from unifier.cli import main

if __name__ == "__main__":
    sys.exit(main())
