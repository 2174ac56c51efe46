"""Runs seeds one after another: `python -m hailbus_devtools.simulate.worker`.

It prints a line of JSON when it begins a seed, and its report when it has ended.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import os
import signal
import sys

CPU_SECONDS_PER_SEED = 120
"""A seed that takes more hangs: the process then ends itself, with the place where it was on standard error.

CPU time, because a busy machine is no reason to fail, and a simulated world never waits.
"""

COLLECT_EVERY = 20
"""Seeds. The garbage collector is paused while a world runs, so by itself it comes too seldom: a world leaves 2 MB."""


def main() -> None:
    """Run seeds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--end", type=int, required=True)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=1, help="brokers of the cluster; 1 is one without a cluster")
    parser.add_argument("--guests", choices=["with", "without"], help="leave out scenarios without or with guests")
    parser.add_argument("--mutant", help="the name of a mutant to run with")
    parser.add_argument("--until-found", action="store_true", help="end with the first seed that finds something")
    options = parser.parse_args()
    if options.mutant is not None:
        from hailbus_devtools.simulate.mutants import install, read_mutants

        (mutant,) = [mutant for mutant in read_mutants() if mutant.name == options.mutant]
        install(mutant)

    from hailbus_broker.testing.campaign import draw_scenario, has_guests, run_scenario
    from hailbus_broker.testing.simulation.patching import patched

    make_guests = None
    if options.nodes == 1 and options.guests != "without":
        from hailbus_devtools.simulate.guests import Guests  # with it aiokafka and the SDK, before they are patched

        make_guests = Guests

    logging.disable()
    faulthandler.register(signal.SIGPROF, chain=True)  # and then as by default: it ends the process
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    ran = 0
    with patched():
        for seed in range(options.first, options.end, options.step):
            scenario = draw_scenario(seed, options.nodes)
            if options.guests is not None and (options.guests == "with") != has_guests(scenario):
                continue
            lines.write(json.dumps({"begins": seed}) + "\n")
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS_PER_SEED)
            outcome = run_scenario(scenario, make_guests=make_guests)
            ran += 1
            if ran % COLLECT_EVERY == 0:
                gc.collect()
            signal.setitimer(signal.ITIMER_PROF, 0)
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
