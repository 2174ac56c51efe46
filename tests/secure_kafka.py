"""An Apache Kafka whose listeners want TLS and SASL, with certificates made for it."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.servers import APACHE_PROPERTIES, Started, free_apache_port, run_servers, start_apache_kafka
from tests.support import free_port

USER, PASSWORD = "shop", 'right, and "quoted"'
KEY_PASSWORD = "of the key"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LOGIN = "org.apache.kafka.common.security"


KEY_USAGE = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""Of an authority."""


class Authority:
    """A certificate authority, which writes what it signs as PEM files into a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(KEY_USAGE, critical=True)
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            # RFC 5280 wants both, and Python 3.13 refuses certificates without them.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def issue(self, name: str, *, password: str | None = None) -> tuple[Path, Path]:
        """A certificate for 127.0.0.1 and its key: their files."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        signed = self._builder(subject, key.public_key()).add_extension(names, critical=False)
        certificate, private = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(
            signed.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM) + self.file.read_bytes()
        )
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption(),
            )
        )
        return certificate, private


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureKafka:
    """The addresses of the listeners, and the files of a client."""

    plaintext: str
    ssl: str
    mutual: str
    """TLS, where the client needs a certificate, too."""
    sasl_plaintext: str
    sasl_ssl: str
    plain_only: str
    """SASL without TLS, where PLAIN is the only mechanism."""
    ca: str
    other_ca: str
    certificate: str
    key: str
    certificate_with_password: str
    encrypted_key: str


def secure_kafka() -> SecureKafka:
    """The one of this test run, started by the first test that asks."""
    return SecureKafka(**json.loads(run_servers().address("apache-kafka-secure", _start)))


def _start(folder: Path) -> Started:
    ours, other = Authority(folder, "authority"), Authority(folder, "another-authority")
    broker, broker_key = ours.issue("broker")
    client, key = ours.issue("client")
    with_password, encrypted_key = ours.issue("client-with-password", password=KEY_PASSWORD)
    store = folder / "broker-store.pem"
    store.write_bytes(broker_key.read_bytes() + broker.read_bytes())
    port = free_apache_port()
    names = {
        "SSL": "SSL",
        "MUTUAL": "SSL",
        "OPEN": "SASL_PLAINTEXT",
        "CLOSED": "SASL_SSL",
        "PLAINONLY": "SASL_PLAINTEXT",
    }
    places = {name: f"127.0.0.1:{free_port()}" for name in names}
    listeners = {"PLAINTEXT": f"127.0.0.1:{port}", **places}
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **names}
    properties = APACHE_PROPERTIES | {
        "listeners": ",".join(f"{n}://{p}" for n, p in listeners.items()) + f",CONTROLLER://127.0.0.1:{port + 10}",
        "advertised.listeners": ",".join(f"{n}://{p}" for n, p in listeners.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ours.file),
        "listener.name.mutual.ssl.client.auth": "required",
        "connection.failed.authentication.delay.ms": "0",
    }
    password = PASSWORD.replace('"', r"\\\"")
    for name, mechanisms in {"open": MECHANISMS, "closed": MECHANISMS, "plainonly": MECHANISMS[:1]}.items():
        properties[f"listener.name.{name}.sasl.enabled.mechanisms"] = ",".join(mechanisms)
        for mechanism in mechanisms:
            module = f"{LOGIN}.scram.ScramLoginModule required;"
            if mechanism == "PLAIN":
                module = f'{LOGIN}.plain.PlainLoginModule required user_{USER}="{password}";'
            properties[f"listener.name.{name}.{mechanism.lower()}.sasl.jaas.config"] = module
    started = start_apache_kafka(folder, properties, port=port)
    _add_scram_user(started.address)
    found = SecureKafka(
        plaintext=started.address,
        ssl=places["SSL"],
        mutual=places["MUTUAL"],
        sasl_plaintext=places["OPEN"],
        sasl_ssl=places["CLOSED"],
        plain_only=places["PLAINONLY"],
        ca=str(ours.file),
        other_ca=str(other.file),
        certificate=str(client),
        key=str(key),
        certificate_with_password=str(with_password),
        encrypted_key=str(encrypted_key),
    )
    return Started(address=json.dumps(asdict(found)), stop=started.stop)


def _add_scram_user(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        wanted = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for future in admin.alter_user_scram_credentials([wanted]).values():
            future.result(30)
