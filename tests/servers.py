"""Servers that all processes of a test run use together.

The first test that needs one starts it, in whichever process it runs; the run stops it at its end. Tests that kill a
server, or want settings of their own, start their own.
"""

import fcntl
import os
import pwd
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
from hailbus_devtools.tools import apache_kafka, postgresql_program

from tests.needs import need
from tests.support import free_port

FOLDER_VARIABLE = "HAILBUS_TEST_SERVERS"
"""Names the folder of the run's servers, for the processes of the run."""

FAST_PROPERTIES = {
    # No test waits for more members of a group, or for a session timeout that is made for fleets.
    "group.initial.rebalance.delay.ms": "0",
    # A test can fill a group up.
    "group.max.size": "8",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    # What is old or superseded is gone while a test waits.
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "200",
}
"""Settings of every broker that tests share, so that no test waits for what takes its time by default."""

APACHE_PROPERTIES = FAST_PROPERTIES | {
    "log.initial.task.delay.ms": "200",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
"""The same for Apache Kafka, with the waits that only Apache Kafka has."""

SHARED_APACHE_PROPERTIES = APACHE_PROPERTIES | {
    # On a busy machine its only broker would be fenced for a while, and its coordinators loaded anew. A broker that is
    # killed and started again is refused for as long, so only the one that nobody kills has it.
    "broker.session.timeout.ms": "60000",
}
"""The same for the Apache Kafka that all tests of a run share."""


def of_several_nodes(nodes: int) -> dict[str, str]:
    """Return the settings of each node of a cluster: three replicas, of which two must have what is acknowledged."""
    if nodes == 1:
        return {}
    return {
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
    }


SHORT_LIVED_JVM = {"KAFKA_JVM_OPTS": "-XX:TieredStopAtLevel=1"}
"""For JVMs that end before the slower of the two compilers pays off: it takes half of their CPU time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A server that runs until the shell command `stop` is run."""

    address: str
    stop: str


class SharedServers:
    """The servers of one test run, recorded in a folder that all its processes know."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def address(self, name: str, start: Callable[[Path], Started]) -> str:
        """Return the address of a server; start it first if no process of this run has.

        Args:
            name: The server's name, and that of the folder in which `start` may write.
            start: Starts the server and returns when it answers.
        """
        known = self._folder / f"{name}.address"
        with (self._folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not known.exists():
                directory = self._folder / name
                directory.mkdir(exist_ok=True)
                found = start(directory)
                known.with_suffix(".stop").write_text(found.stop)
                known.write_text(found.address)
            return known.read_text()


KEEPER = """
cat
for stop in "$1"/*.stop; do
  [ ! -e "$stop" ] || sh "$stop"
done
rm -rf "$1"
"""
"""Waits for the end of the process that holds its standard input, then stops all servers of a folder."""


class Keeper:
    """Stops the servers of a folder and removes it, when it is told to or when this process dies."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", KEEPER, "sh", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C ends the tests, and then this
        )

    def stop(self) -> None:
        """Stop the servers and return when they have ended."""
        self._process.communicate()


def run_as(user: str | None, command: Sequence[str], *, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as another user if one is given."""
    return subprocess.run(
        command,
        user=user,
        group=pwd.getpwnam(user).pw_gid if user else None,
        extra_groups=[] if user else None,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # a server that the command starts would keep a pipe open
        stderr=subprocess.PIPE,
        check=False,
        text=True,
    )


def run_servers() -> SharedServers:
    """Return the servers of this test run."""
    return SharedServers(Path(os.environ[FOLDER_VARIABLE]))


def free_apache_port() -> int:
    """Return a free port for a node of Apache Kafka: the start script gives its controller the tenth port above."""
    return free_port(also=(10,))


def start_apache_kafka(
    directory: Path, properties: Mapping[str, str], *, port: int | None = None, nodes: int = 1
) -> Started:
    """Start Apache Kafka on loopback, anew on its data if it ran before; skip the test if it cannot be had.

    Args:
        directory: The folder of its properties and data.
        properties: What differs from the defaults of the start script.
        port: The port to listen on; a free one if none is given. Further nodes have the ports behind it.
        nodes: 1 or 3.
    """
    need("apache kafka")
    properties = {**properties, **of_several_nodes(nodes)}
    script = str(apache_kafka())
    file = directory / "more.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    subprocess.run([script, "fetch"], check=True, capture_output=True)
    ports = range(1, nodes)
    port = port or free_port(also=(*ports, *(10 + number for number in (0, *ports))))
    data = str(directory / "data")
    done = subprocess.run(
        [script, "start", "--nodes", str(nodes), "--port", str(port), "--dir", data, "--properties", str(file)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"KAFKA_HEAP_OPTS": "-Xms256m -Xmx512m"} | SHORT_LIVED_JVM,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    address = ",".join(f"127.0.0.1:{port + number}" for number in range(nodes))
    return Started(address=address, stop=shlex.join([script, "stop", "--dir", data]))


def shared_apache_kafka(*, nodes: int = 1) -> str:
    """Return the bootstrap address of the Apache Kafka of this run.

    `HAILBUS_APACHE_BOOTSTRAP` names one that runs already, with `SHARED_APACHE_PROPERTIES`.

    Args:
        nodes: 1 or 3, which are two servers.
    """
    if running := os.environ.get("HAILBUS_APACHE_BOOTSTRAP"):
        return running
    need("apache kafka")
    name = "apache-kafka" if nodes == 1 else f"apache-kafka-{nodes}"

    def start(folder: Path) -> Started:
        started = start_apache_kafka(folder, SHARED_APACHE_PROPERTIES, nodes=nodes)
        try:
            wait_for_coordinators(started.address)
        except BaseException:
            subprocess.run(shlex.split(started.stop), check=False)  # so that the next test can start it
            raise
        return started

    return run_servers().address(name, start)


NO_COORDINATOR_YET = {
    confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
    confluent_kafka.KafkaError.NOT_COORDINATOR,
}


def wait_for_coordinators(bootstrap: str, *, within_s: float = 60.0) -> None:
    """Return once the broker answers a request for committed offsets.

    The first request creates the topic of commits; until its partitions have leaders, the broker answers with an error.
    """
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "first"})
    deadline = time.monotonic() + within_s
    try:
        while True:
            try:
                consumer.committed([confluent_kafka.TopicPartition("first", 0)], within_s)
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() not in NO_COORDINATOR_YET or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return
    finally:
        consumer.close()


class PostgreSQL:
    """The PostgreSQL server of this run. Its databases have names that are used once."""

    def __init__(self, address: str) -> None:
        self._address = address

    def url(self, database: str) -> str:
        """Return the address of a database for SQLAlchemy."""
        return f"postgresql+asyncpg://hailbus@{self._address}/{database}"

    def create(self, database: str) -> str:
        """Create a database and return its address."""
        import asyncio

        import asyncpg

        async def run() -> None:
            connection = await asyncpg.connect(f"postgresql://hailbus@{self._address}/postgres")
            await connection.execute(f"CREATE DATABASE {database}")
            await connection.close()

        asyncio.run(run())
        return self.url(database)


def shared_postgresql() -> PostgreSQL:
    """Return the PostgreSQL server of this run; skip the test where none can be started."""
    need("postgresql")
    return PostgreSQL(run_servers().address("postgresql", start_postgresql))


def start_postgresql(directory: Path) -> Started:
    """Start a PostgreSQL server on a free port of loopback, with its data in a directory."""
    # PostgreSQL refuses to run as root: then it runs as the user that owns the system's installation.
    user = "postgres" if os.geteuid() == 0 else None
    if user:
        owner = pwd.getpwnam(user)
        os.chown(directory, owner.pw_uid, owner.pw_gid)
    port, data = free_port(), str(directory / "data")

    def run(program: str, *arguments: str) -> None:
        path = postgresql_program(program)
        assert path is not None
        done = run_as(user, [path, *arguments], directory=directory)
        assert done.returncode == 0, done.stderr

    run("initdb", "--pgdata", data, "--auth=trust", "--username=hailbus", "--no-sync")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c max_connections=300 -c unix_socket_directories={directory}"
    run("pg_ctl", "--pgdata", data, "--wait", f"--log={directory / 'log'}", f"--options={options}", "start")
    # An immediate shutdown, as the server's signal: `pg_ctl` refuses to be run by root.
    file = shlex.quote(f"{data}/postmaster.pid")
    stop = f"kill -QUIT $(head -n 1 {file}); while [ -e {file} ]; do sleep 0.1; done"
    return Started(address=f"127.0.0.1:{port}", stop=stop)
