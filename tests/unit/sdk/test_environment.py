"""The bus from `HAILBUS_…` variables, where no bus is given."""

import pytest
from hailbus import ConfigurationError, KafkaBus, Service
from hailbus.environment import bus_from_environment


def test_bootstrap_servers_and_every_other_setting_are_read_by_the_names_of_kafka_bus() -> None:
    found = bus_from_environment(
        {
            "HAILBUS_BOOTSTRAP_SERVERS": "a:1,b:2",
            "HAILBUS_ACKS": "1",
            "HAILBUS_IDEMPOTENT": "false",
            "HAILBUS_COMPRESSION": "LZ4",
            "HAILBUS_CONNECT_TIMEOUT_S": "2.5",
            "HAILBUS_CLIENT_ID": "",
            "HAILBUS_SHARED": "/elsewhere",
            "OTHER": "x",
        }
    )
    assert found == KafkaBus(
        bootstrap_servers="a:1,b:2",
        acks=1,
        idempotent=False,
        compression="lz4",
        connect_timeout_s=2.5,
        partitioner=found.partitioner if found else None,  # type: ignore[arg-type]  # compared by identity
    )


def test_tls_and_a_password_are_read_too() -> None:
    found = bus_from_environment(
        {
            "HAILBUS_BOOTSTRAP_SERVERS": "a:1",
            "HAILBUS_SECURITY_PROTOCOL": "sasl_ssl",
            "HAILBUS_SSL_CA_FILE": "/etc/ca.pem",
            "HAILBUS_SASL_USERNAME": "ada",
            "HAILBUS_SASL_PASSWORD": "secret",
        }
    )
    assert found is not None
    assert (found.security_protocol, found.ssl_ca_file) == ("SASL_SSL", "/etc/ca.pem")
    assert (found.sasl_username, found.sasl_password) == ("ada", "secret")


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"HAILBUS_BOOTSTRAP_SERVER": "a:1"}, "unknown setting HAILBUS_BOOTSTRAP_SERVER; did you mean HAILBUS_BOOTST"),
        ({"HAILBUS_ACKS": "2"}, "HAILBUS_ACKS='2' is not one of all, 1, 0"),
        ({"HAILBUS_LINGER_MS": "soon"}, "HAILBUS_LINGER_MS='soon': Input should be a valid integer"),
        ({"HAILBUS_BOOTSTRAP_SERVERS": "nowhere"}, "bootstrap server 'nowhere' is not like 'host:9092'"),
        ({"HAILBUS_SSL_CAFILE": "/ca.pem"}, "unknown setting HAILBUS_SSL_CAFILE; did you mean HAILBUS_SSL_CA_FILE?"),
    ],
)
def test_what_is_wrong_or_misspelt_is_named(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        bus_from_environment({"HAILBUS_BOOTSTRAP_SERVERS": "a:1", **environment})
    assert str(refused.value).startswith(sentence)


async def test_a_service_without_a_bus_takes_the_environments_and_says_so_when_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    svc = Service("till")
    monkeypatch.delenv("HAILBUS_BOOTSTRAP_SERVERS", raising=False)
    with pytest.raises(ConfigurationError) as refused:
        await svc.start()
    assert str(refused.value) == (
        "service till has no bus: set HAILBUS_BOOTSTRAP_SERVERS=host:9092 in the environment, or give one to "
        "Service(bus=...) or running(bus)"
    )
    monkeypatch.setenv("HAILBUS_BOOTSTRAP_SERVERS", "nowhere")
    with pytest.raises(ConfigurationError, match="bootstrap server 'nowhere'"):
        await svc.start()
    assert bus_from_environment({}) is None
