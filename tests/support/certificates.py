"""Certificates for the tests: an authority, a server of it for 127.0.0.1 and localhost, a client of it."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Pair(NamedTuple):
    certificate: Path
    key: Path


class Certificates(NamedTuple):
    authority: Path
    server: Pair
    client: Pair


def make_certificates(directory: Path) -> Certificates:
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _sign("authority", key, "authority", key, ca=True)
    path = directory / "ca.pem"
    path.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    return Certificates(path, _pair(directory, "server", key), _pair(directory, "client", key))


def _pair(directory: Path, name: str, authority_key: ec.EllipticCurvePrivateKey) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    pair = Pair(directory / f"{name}.pem", directory / f"{name}.key")
    certificate = _sign(name, key, "authority", authority_key, ca=False)
    pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pair.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return pair


def _sign(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuer_key: ec.EllipticCurvePrivateKey, *, ca: bool
) -> x509.Certificate:
    now = datetime.now(UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return builder.sign(issuer_key, hashes.SHA256())
