"""Runs seeds one after another and prints a line of JSON for each: `python -m hailbus_devtools.simulate.worker`."""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import sys

SECONDS_PER_SEED = 300
"""A seed that takes longer hangs: the process then ends itself, with the place where it was on standard error."""


def main() -> None:
    """Run seeds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--end", type=int, required=True)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--guests", choices=["with", "without"], help="leave out scenarios without or with guests")
    parser.add_argument("--mutant", help="the name of a mutant to run with")
    parser.add_argument("--until-found", action="store_true", help="end with the first seed that finds something")
    options = parser.parse_args()
    if options.mutant is not None:
        from hailbus_devtools.simulate.mutants import install, read_mutants

        (mutant,) = [mutant for mutant in read_mutants() if mutant.name == options.mutant]
        install(mutant)

    from hailbus_broker.testing.campaign import draw, has_guests, run_scenario
    from hailbus_broker.testing.simulation.patching import patched

    from hailbus_devtools.simulate.guests import Guests  # with it aiokafka and the SDK, before they are patched

    logging.disable()
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    with patched():
        for seed in range(options.first, options.end, options.step):
            scenario = draw(seed)
            if options.guests is not None and (options.guests == "with") != has_guests(scenario):
                continue
            faulthandler.dump_traceback_later(SECONDS_PER_SEED, exit=True)
            outcome = run_scenario(scenario, make_guests=Guests)
            faulthandler.cancel_dump_traceback_later()
            report = {
                "seed": seed,
                "problems": outcome.problems,
                "notes": outcome.notes,
                "digest": outcome.digest,
                "simulated_s": outcome.simulated_s,
                "lines": outcome.lines[-40:] if outcome.problems else [],
            }
            lines.write(json.dumps(report) + "\n")
            if outcome.problems and options.until_found:
                return


if __name__ == "__main__":
    main()
    sys.stdout.flush()
