"""Imports what a node of a cluster imports sooner or later, so that its forks need not."""

from __future__ import annotations

import structlog  # noqa: F401 imported to be there when the command forks

import hailbus_broker.cli.serve
import hailbus_broker.cluster.raft.wire
import hailbus_broker.protocol.definitions.api_versions_request
import hailbus_broker.runtime.controller_registration
import hailbus_broker.runtime.controller_role
import hailbus_broker.runtime.membership  # noqa: F401 imported to be there when the command forks
