"""Derive `hailbus_broker/protocol/definitions` from the message specifications that Kafka's jars carry.

Only facts are taken: names, types, versions, tags, defaults. Run it again when Kafka has new versions:

    derive-protocol --libs DIR        # where kafka-clients-*.jar and the coordinators' jars lie
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

DEFINITIONS: Final = (
    Path(__file__).resolve().parents[3] / "broker" / "src" / "hailbus_broker" / "protocol" / "definitions"
)

# What the broker serves or keeps.
REQUESTS: Final = [
    "Produce",
    "Fetch",
    "ListOffsets",
    "Metadata",
    "OffsetCommit",
    "OffsetFetch",
    "FindCoordinator",
    "JoinGroup",
    "Heartbeat",
    "LeaveGroup",
    "SyncGroup",
    "DescribeGroups",
    "ListGroups",
    "ApiVersions",
    "CreateTopics",
    "DeleteTopics",
    "DeleteRecords",
    "InitProducerId",
    "OffsetForLeaderEpoch",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "EndTxn",
    "WriteTxnMarkers",
    "TxnOffsetCommit",
    "DescribeConfigs",
    "AlterConfigs",
    "DescribeLogDirs",
    "CreatePartitions",
    "DeleteGroups",
    "ElectLeaders",
    "IncrementalAlterConfigs",
    "AlterPartitionReassignments",
    "ListPartitionReassignments",
    "OffsetDelete",
    "DescribeQuorum",
    "UpdateFeatures",
    "DescribeCluster",
    "DescribeProducers",
    "DescribeTransactions",
    "ListTransactions",
    "ConsumerGroupHeartbeat",
    "ConsumerGroupDescribe",
    "ListConfigResources",
    "DescribeTopicPartitions",
    "DescribeClientQuotas",
    # Between the nodes of a cluster.
    "Vote",
    "BeginQuorumEpoch",
    "EndQuorumEpoch",
    "AlterPartition",
    "Envelope",
    "FetchSnapshot",
    "BrokerRegistration",
    "BrokerHeartbeat",
    "UnregisterBroker",
    "AllocateProducerIds",
    "ControllerRegistration",
    "AssignReplicasToDirs",
    "AddRaftVoter",
    "RemoveRaftVoter",
    "UpdateRaftVoter",
]
HEADERS: Final = ("RequestHeader", "ResponseHeader")
DATA: Final = (
    "ConsumerProtocolSubscription",
    "ConsumerProtocolAssignment",
    "DefaultPrincipalData",
    "LeaderChangeMessage",
    "SnapshotHeaderRecord",
    "SnapshotFooterRecord",
    "KRaftVersionRecord",
    "VotersRecord",
)
RECORDS: Final = {
    "kafka-group-coordinator": [
        "OffsetCommitKey",
        "OffsetCommitValue",
        "GroupMetadataKey",
        "GroupMetadataValue",
        "ConsumerGroupMetadataKey",
        "ConsumerGroupMetadataValue",
        "ConsumerGroupMemberMetadataKey",
        "ConsumerGroupMemberMetadataValue",
        "ConsumerGroupTargetAssignmentMetadataKey",
        "ConsumerGroupTargetAssignmentMetadataValue",
        "ConsumerGroupTargetAssignmentMemberKey",
        "ConsumerGroupTargetAssignmentMemberValue",
        "ConsumerGroupCurrentMemberAssignmentKey",
        "ConsumerGroupCurrentMemberAssignmentValue",
        "ConsumerGroupRegularExpressionKey",
        "ConsumerGroupRegularExpressionValue",
    ],
    "kafka-transaction-coordinator": ("TransactionLogKey", "TransactionLogValue"),
    "kafka-metadata": [
        "TopicRecord",
        "RemoveTopicRecord",
        "PartitionRecord",
        "PartitionChangeRecord",
        "ConfigRecord",
        "FeatureLevelRecord",
        "ProducerIdsRecord",
        "RegisterBrokerRecord",
        "UnregisterBrokerRecord",
        "FenceBrokerRecord",
        "UnfenceBrokerRecord",
        "BrokerRegistrationChangeRecord",
        "RegisterControllerRecord",
        "DelegationTokenRecord",
        "RemoveDelegationTokenRecord",
        "UserScramCredentialRecord",
        "RemoveUserScramCredentialRecord",
        "ClientQuotaRecord",
        "AccessControlEntryRecord",
        "RemoveAccessControlEntryRecord",
        "ZkMigrationStateRecord",
        "BeginTransactionRecord",
        "EndTransactionRecord",
        "AbortTransactionRecord",
        "ClearElrRecord",
        "NoOpRecord",
    ],
}

PRIMITIVES: Final = {
    "bool": ("boolean", "bool"),
    "int8": ("int8", "int"),
    "int16": ("int16", "int"),
    "uint16": ("uint16", "int"),
    "int32": ("int32", "int"),
    "uint32": ("uint32", "int"),
    "int64": ("int64", "int"),
    "float64": ("float64", "float"),
    "uuid": ("uuid", "Uuid"),
    "string": ("string", "str"),
    "bytes": ("data", "bytes | memoryview"),
    "records": ("data", "bytes | memoryview"),
}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="derive-protocol", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--libs", type=Path, required=True, help="folder with Kafka's jars")
    parser.add_argument("--out", type=Path, default=DEFINITIONS, help="folder to write the definitions to")
    arguments = parser.parse_args()
    try:
        derive(arguments.libs, arguments.out)
    except (FileNotFoundError, KeyError) as error:
        sys.exit(f"derive-protocol: {error}; give --libs the folder that holds kafka-clients-*.jar and its companions")


def derive(libs: Path, out: Path) -> None:
    """Write one module per message, and the table of APIs."""
    specifications = read_jar(libs, "kafka-clients")
    out.mkdir(parents=True, exist_ok=True)
    apis = []
    wanted: list[tuple[str, dict[str, Any]]] = []
    for name in REQUESTS:
        request, response = specifications[f"{name}Request"], specifications[f"{name}Response"]
        wanted += [(f"{name}Request", request), (f"{name}Response", response)]
        apis.append((request["apiKey"], name, request["validVersions"], request["flexibleVersions"]))
    wanted += [(name, specifications[name]) for name in (*HEADERS, *DATA)]
    for jar, names in RECORDS.items():
        of_jar = read_jar(libs, jar)
        wanted += [(name, of_jar[name]) for name in names]
    for name, specification in wanted:
        (out / f"{snake(name)}.py").write_text(module(name, specification), encoding="utf-8")
    (out / "__init__.py").write_text(table(sorted(apis)), encoding="utf-8")
    for command in (["check", "-q", "--select", "I", "--fix"], ["format", "-q"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, str(out)], check=True)


def read_jar(libs: Path, name: str) -> dict[str, dict[str, Any]]:
    """The message specifications in a jar, by name."""
    jars = sorted(path for path in libs.glob(f"{name}-*.jar") if re.fullmatch(rf"{name}-[\d.]+\.jar", path.name))
    if not jars:
        raise FileNotFoundError(f"no {name}-*.jar in {libs}")
    found = {}
    with zipfile.ZipFile(jars[-1]) as jar:
        for entry in jar.namelist():
            if entry.endswith(".json"):
                text = re.sub(r"^\s*//.*$", "", jar.read(entry).decode(), flags=re.MULTILINE)
                specification = json.loads(text)
                if isinstance(specification, dict) and "validVersions" in specification:
                    found[specification["name"]] = specification
    return found


def snake(name: str) -> str:
    """`FetchRequest` → `fetch_request`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def module(name: str, specification: dict[str, Any]) -> str:
    """The definition of one message."""
    classes: list[str] = []
    done: set[str] = set()
    common = {entry["name"]: entry for entry in specification.get("commonStructs", [])}

    def visit(struct_name: str, fields: list[dict[str, Any]], header: str) -> None:
        lines = []
        for entry in fields:
            kind = entry["type"].removeprefix("[]")
            if kind not in PRIMITIVES and kind not in done:
                done.add(kind)
                visit(kind, entry.get("fields") or common[kind]["fields"], f"class {kind}(Struct):")
            lines.append("    " + attribute(entry))
        classes.append(
            "\n".join([header, f'    """Part of {name}."""' if struct_name != name else docstring, "", *lines])
        )

    api_key = specification.get("apiKey")
    number = "" if api_key is None else f", api_key={api_key}"
    title = f"API key {api_key}" if specification["type"] in {"request", "response"} else specification["type"]
    valid, flexible = specification["validVersions"], specification.get("flexibleVersions", "none")
    docstring = f'    """{name}, {title}, versions {valid}, flexible {flexible}."""'
    header = f'class {name}(Message, versions="{valid}", flexible="{flexible}"{number}):'
    visit(name, specification.get("fields", []), header)
    body = "\n\n\n".join(classes)
    used = sorted(
        {
            word
            for word in (
                "Message",
                "Struct",
                "Uuid",
                "array",
                "boolean",
                "data",
                "float64",
                "int16",
                "int32",
                "int64",
                "int8",
                "string",
                "struct",
                "uint16",
                "uint32",
                "uuid",
            )
            if re.search(rf"(?<![\w\"]){word}(?=[(\s,:)\]])", re.sub(r'"""[^"]*"""', "", body))
        }
    )
    imports = ", ".join(used)
    return (
        f'"""{name}. Derived by `derive-protocol`: not edited by hand."""\n\n'
        f"from hailbus_broker.protocol.schema import {imports}\n\n\n{body}\n"
    )


def attribute(entry: dict[str, Any]) -> str:
    """One field as an attribute of its class."""
    name = snake(entry["name"])
    versions = entry.get("versions") or entry["taggedVersions"]
    is_array = entry["type"].startswith("[]")
    kind = entry["type"].removeprefix("[]")
    keywords = []
    nullable = entry.get("nullableVersions")
    default = entry.get("default")
    if is_array:
        element = kind if kind not in PRIMITIVES else f'{PRIMITIVES[kind][0]}("0+")'
        values = kind if kind not in PRIMITIVES else PRIMITIVES[kind][1]
        annotation, call = f"list[{values}]", f'array({element}, "{versions}"'
        if default is not None and default != "null":
            raise ValueError(f"{name}: default {default!r}")
    elif kind in PRIMITIVES:
        maker, annotation = PRIMITIVES[kind]
        call = f'{maker}("{versions}"'
    else:
        annotation, call = kind, f'struct({kind}, "{versions}"'
    if default == "null":
        keywords.append("default=None")
    elif default not in {None, ""}:
        keywords.append(f"default={literal(kind, default)}")
    if nullable:
        annotation += " | None"
        keywords.append(f'nullable="{nullable}"')
    if "tag" in entry:
        if entry["taggedVersions"] != versions:
            raise ValueError(f"{name}: tagged in other versions than it exists in")
        keywords.append(f"tag={entry['tag']}")
    if entry.get("flexibleVersions") == "none":
        keywords.append("flexible=False")
    return f"{name}: {annotation} = {', '.join([call, *keywords])})"


def literal(kind: str, default: object) -> str:
    """A default value in Python."""
    if kind == "bool":
        return str(default in {True, "true"})
    if kind == "string":
        return json.dumps(default)
    if kind == "float64":
        return str(float(str(default)))
    return str(int(str(default), 0))


def table(apis: list[tuple[int, str, str, str]]) -> str:
    """`__init__.py`: what can be known of the APIs without loading their messages."""
    rows = []
    for key, name, valid, flexible in apis:
        first, _, last = valid.partition("-")
        since = "32767" if flexible == "none" else flexible.rstrip("+")
        rows.append(f'    {key}: ("{name}", {first}, {last or first}, {since}),')
    return (
        '"""One module per message. Derived by `derive-protocol`: not edited by hand."""\n\n'
        "from typing import Final\n\n"
        "APIS: Final[dict[int, tuple[str, int, int, int]]] = {\n" + "\n".join(rows) + "\n}\n"
        '"""API key → name, first version, last version, first flexible version."""\n'
    )


if __name__ == "__main__":
    main()
