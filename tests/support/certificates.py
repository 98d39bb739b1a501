"""Makes certificates with which tests sign files; no verifier has them on its list."""

import datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


def new_certificate(
    private_key: Any = None,
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.EMAIL_PROTECTION,
    days: int = 30,
    common_name: str = "Voice",
    host: str | None = None,
) -> tuple[bytes, bytes]:
    """Return the PEM of a certificate with that of its root, and of its private key.

    Args:
        private_key: None: a new one, of the curve P-256.
        usage: the extended key usage.
        days: for how long it holds from now; below 0: it has expired.
        common_name: of the signer.
        host: the name of a server that the certificate is for.
    """
    private_key = private_key or ec.generate_private_key(ec.SECP256R1())
    root_key = ec.generate_private_key(ec.SECP256R1())
    root = _signed(_name("Root"), root_key.public_key(), _name("Root"), root_key, None, 3000, None)
    name, public_key = _name(common_name), private_key.public_key()
    own = _signed(name, public_key, root.subject, root_key, usage, days, host)
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return own.public_bytes(pem) + root.public_bytes(pem), private_key.private_bytes(pem, *form)


def _name(common_name: str) -> x509.Name:
    names = {NameOID.ORGANIZATION_NAME: "Operator", NameOID.COMMON_NAME: common_name}
    return x509.Name([x509.NameAttribute(*each) for each in names.items()])


def _signed(
    name: x509.Name,
    public_key: Any,
    issuer: x509.Name,
    issuer_key: Any,
    usage: x509.ObjectIdentifier | None,
    days: int,
    host: str | None,
) -> x509.Certificate:
    """Return a certificate; without a usage it is that of an authority."""
    now, is_root = datetime.datetime.now(datetime.UTC), usage is None
    allowed = dict.fromkeys(
        (
            *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
            *("encipher_only", "decipher_only"),
        ),
        False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 100 * DAY)
        .not_valid_after(now + days * DAY)
        .add_extension(x509.BasicConstraints(ca=is_root, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_root, key_cert_sign=is_root, crl_sign=is_root, **allowed
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
    if host is not None:
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())
