# One word per task. `uv run just --list`
set shell := ["bash", "-uc"]

# the whole system, with rides (see `uv run demo --help`)
demo *args:
    uv run demo {{args}}

# everything that must pass before a change lands
check *args:
    uv run check {{args}}

# style, types, imports, unit and property tests
fast *args:
    uv run check --fast {{args}}

# format and mend what can be mended
fix:
    uv run ruff check --fix .
    uv run ruff format .

# pin the versions that resolve now (`just pin --upgrade` for newer ones)
pin *args:
    uv run pin {{args}}

# build the wheels; try them, each extra and the quickstart in empty environments on each Python (`--lowest`: lowest versions)
release *args:
    uv run release {{args}}

# long simulations and kill loops
slow *args:
    uv run pytest -m 'slow and not compose' {{args}}

# every suite that the check leaves out, one after another, and docs/long-runs.md
long *args:
    uv run long-runs {{args}}

# the compose file end to end, with brokers that are killed, paused and cut off; needs a Docker engine
compose *args:
    uv run pytest -m compose tests/e2e {{args}}

# the broker side by side with Apache Kafka
bench-broker *args:
    uv run python tests/bench/bench_broker.py {{args}}

# the SDK side by side with other libraries
bench-sdk *args:
    uv run --with 'faststream[kafka]' python tests/bench/bench_sdk.py {{args}}

# booking under load, and the whole chain of the example
bench-city *args:
    uv run python tests/bench/bench_city.py {{args}}

# what the surge worker's CPU costs per event
bench-surge *args:
    uv run python tests/bench/bench_surge.py {{args}}

# how long the lake takes for a backlog
bench-lake *args:
    uv run python tests/bench/bench_lake.py {{args}}

# every benchmark, kept in docs/figures; takes an hour and a half on a machine that does nothing else
figures:
    just bench-broker --json docs/figures/broker.json
    just bench-broker --nodes 3 --json docs/figures/cluster.json
    just bench-sdk --rounds 5 --json docs/figures/sdk.json
    just bench-city --spark --json docs/figures/city.json
    just bench-lake --json docs/figures/lake.json
    uv run derive-figures

# ten minutes of clients against a broker that is killed again and again
history *args:
    HAILBUS_HISTORY_SECONDS=${HAILBUS_HISTORY_SECONDS:-600} uv run pytest -s tests/history {{args}}

# an hour of clients against three nodes that are killed, suspended, restarted and cut off each other; needs root
faults *args:
    HAILBUS_FAULTS_SECONDS=${HAILBUS_FAULTS_SECONDS:-3600} uv run pytest -s tests/history/test_faults_on_a_cluster.py -k hailbus {{args}}

# the conformance tests and the tutorial on three nodes of both systems
conformance-cluster *args:
    HAILBUS_TEST_NODES=3 uv run pytest tests/conformance {{args}}

# clients and faults against a simulated broker, by seeds; `--shrink` a failure, `--mutants` of the broker
simulate *args:
    uv run simulate {{args}}

# change the code that decides, one place at a time, and see whether a test fails
mutate *args:
    uv run mutate {{args}}

# the documentation, at http://127.0.0.1:8000 with reload
docs *args:
    uv run mkdocs serve --dev-addr 127.0.0.1:8000 {{args}}

# the documentation as files in build/site; fails on a broken link or anchor
docs-build *args:
    uv run mkdocs build --strict {{args}}
