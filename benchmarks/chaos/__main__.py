"""Run campaigns with damaged files and killed runs: `python -m benchmarks.chaos --seed 0`."""

import argparse
import random
import sys

import torch

from benchmarks.chaos.campaign import CAMPAIGNS, run_campaigns

MAX_MINUTES = 60


def main() -> int:
    """Run the campaigns named on the command line. Return 1 if any case is wrong, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description="Try damaged, rare and hostile files, and killed runs."
    )
    parser.add_argument("campaign", nargs="*", help=f"one of {', '.join(CAMPAIGNS)} (default: all)")
    parser.add_argument("--seed", type=int, help="seed of the cases (default: a random seed, which is printed)")
    parser.add_argument(
        "--minutes", type=float, default=MAX_MINUTES, help="maximum time of all campaigns (default: %(default)s)"
    )
    options = parser.parse_args()
    if unknown := sorted(set(options.campaign) - set(CAMPAIGNS)):
        parser.error(f"no campaign is called {', '.join(unknown)}: use one of {', '.join(CAMPAIGNS)}")
    if not 0 < options.minutes <= MAX_MINUTES:
        parser.error(f"--minutes {options.minutes}: give a number above 0 and at most {MAX_MINUTES}")
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    torch.set_num_threads(1)  # Threads that wait for a busy core would count as processor time of a case.
    return run_campaigns(options.campaign or list(CAMPAIGNS), seed, 60 * options.minutes)


if __name__ == "__main__":
    sys.exit(main())
