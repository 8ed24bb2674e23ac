"""Challenges for a TPM, and checks of its quotes, for tests/live/tpm.

They are the controller's own checks (controller/tpm/src/credential.rs and attest.rs)."""

import base64
import hashlib
import hmac
import secrets
import subprocess


class Curve:
    """A NIST curve: y^2 = x^3 - 3x + b."""

    def __init__(self, size, p, n, x, y):
        self.size, self.p, self.n, self.base = size, p, n, (x, y)

    def add(self, one, other):
        if one is None or other is None:
            return other if one is None else one
        (x, y), (u, v), p = one, other, self.p
        if x == u and (y + v) % p == 0:
            return None
        slope = (3 * (x * x - 1) * pow(2 * y, -1, p) if one == other else (v - y) * pow(u - x, -1, p)) % p
        w = (slope * slope - x - u) % p
        return w, (slope * (x - w) - y) % p

    def multiply(self, number, point):
        found = None
        for bit in bin(number)[2:]:
            found = self.add(found, found)
            found = self.add(found, point) if bit == "1" else found
        return found

    def is_signature(self, point, digest, r, s):
        if not (0 < r < self.n and 0 < s < self.n):
            return False
        inverse = pow(s, -1, self.n)
        first = self.multiply(int.from_bytes(digest, "big") * inverse % self.n, self.base)
        found = self.add(first, self.multiply(r * inverse % self.n, point))
        return found is not None and found[0] % self.n == r


P256 = Curve(32, 2**256 - 2**224 + 2**192 + 2**96 - 1,
             0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551,
             0x6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296,
             0x4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5)
P384 = Curve(48, 2**384 - 2**128 - 2**96 + 2**32 - 1,
             0xffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973,
             0xaa87ca22be8b05378eb1c71ef320ad746e1d3b628ba79b9859f741e082542a385502f25dbf55296c3a545e3872760ab7,
             0x3617de4a96262c6f5d9e98bf9292dc29f8f41dbd289a147ce9da3113b5f0b8c00a60b1ce1d7e819d7a431d7c90ea0e5f)
# Each kind of endorsement key: its curve, hash algorithm, bits of the symmetric key, and the special cases.
POINT_CASES = ("x begins with zero", "y begins with zero", "the agreed number begins with zero")
KINDS = {"EccP384": (P384, "sha384", 256, POINT_CASES), "EccP256": (P256, "sha256", 128, POINT_CASES),
         "Rsa2048": (None, "sha256", 128, ("the encrypted seed begins with zero",))}


def sized(data):
    return len(data).to_bytes(2, "big") + data


class Reader:
    """Reads numbers and buffers of a TPM structure."""

    def __init__(self, data):
        self.data = data

    def take(self, length):
        if len(self.data) < length:
            raise ValueError("a structure is too short")
        found, self.data = self.data[:length], self.data[length:]
        return found

    def number(self, length):
        return int.from_bytes(self.take(length), "big")

    def buffer(self):
        return self.take(self.number(2))


def seed_for_point(curve, algorithm, public, case):
    """Returns a seed, and the point from which the TPM derives it (Part 1, C.6.4)."""
    # The point follows the fixed part of the template.
    unique = Reader(public[70 if curve is P384 else 54:])
    own = tuple(int.from_bytes(unique.buffer(), "big") for _ in range(2))
    number = secrets.randbelow(curve.n - 2**20) + 1
    point, agreed = curve.multiply(number, curve.base), curve.multiply(number, own)
    while True:
        x, y, shared = (value.to_bytes(curve.size, "big") for value in (*point, agreed[0]))
        if case is None or {POINT_CASES[0]: x, POINT_CASES[1]: y, POINT_CASES[2]: shared}[case][0] == 0:
            break
        point, agreed = curve.add(point, curve.base), curve.add(agreed, own)
    parts = ((1).to_bytes(4, "big"), shared, b"IDENTITY\0", x, own[0].to_bytes(curve.size, "big"))
    return hashlib.new(algorithm, b"".join(parts)).digest(), sized(x) + sized(y)


def seed_for_modulus(public, case):
    """Returns a seed, and the seed encrypted with OAEP (Part 1, B.10)."""
    modulus = int.from_bytes(public[-256:], "big")

    def mask(seed, length):
        blocks = (hashlib.sha256(seed + n.to_bytes(4, "big")).digest() for n in range(-(-length // 32)))
        return b"".join(blocks)[:length]

    def mixed(one, other):
        return bytes(a ^ b for a, b in zip(one, other))
    while True:
        plain, salt = secrets.token_bytes(32), secrets.token_bytes(32)
        block = hashlib.sha256(b"IDENTITY\0").digest() + bytes(256 - 2 * 32 - 2 - 32) + b"\1" + plain
        block = mixed(block, mask(salt, len(block)))
        encoded = b"\0" + mixed(salt, mask(block, 32)) + block
        encrypted = pow(int.from_bytes(encoded, "big"), 65537, modulus).to_bytes(256, "big")
        if case is None or encrypted[0] == 0:
            return plain, encrypted


def challenge(kind, public, name, secret, case):
    """Returns the buffers of a TPM2B_ID_OBJECT and a TPM2B_ENCRYPTED_SECRET for the secret (Part 1, 24)."""
    curve, algorithm, bits, _ = KINDS[kind]
    seed, encrypted = seed_for_point(curve, algorithm, public, case) if curve else seed_for_modulus(public, case)

    def derived(label, context, length):
        text = (1).to_bytes(4, "big") + label + context + length.to_bytes(4, "big")
        return hmac.new(seed, text, algorithm).digest()[:length // 8]
    # The key is only used for this test.
    cipher = ["openssl", "enc", f"-aes-{bits}-cfb", "-K", derived(b"STORAGE\0", name, bits).hex(), "-iv", "0" * 32]
    identity = subprocess.run(cipher, input=sized(secret), capture_output=True, check=True).stdout
    key = derived(b"INTEGRITY\0", b"", hashlib.new(algorithm).digest_size * 8)
    return sized(hmac.new(key, identity + name, algorithm).digest()) + identity, encrypted


def binding(fields):
    """The key binding, which the quote must cover (attestation/src/binding.rs)."""
    text = b"cluster.x-k8s.io/kubelet-authenticator/tpm/v1\0"
    return hashlib.sha256(text + b"".join(len(field).to_bytes(4, "big") + field for field in fields)).digest()


def verified(quoted, name, expected, pcrs):
    """Verifies a quote as the controller does. Returns its facts. Raises ValueError if a check fails."""
    attest, signature = (base64.b64decode(quoted[field]) for field in ("attest", "signature"))
    key, sig = Reader(base64.b64decode(quoted["attestation"])[20:]), Reader(signature)
    point = tuple(int.from_bytes(key.buffer(), "big") for _ in range(2))
    algorithms, r, s = (sig.number(2), sig.number(2)), sig.buffer(), sig.buffer()
    read = Reader(attest)
    kind = (read.number(4), read.number(2))
    signer, extra = read.buffer(), read.buffer()
    facts = {name: read.number(length) for name, length in
             (("clock", 8), ("reset_count", 4), ("restart_count", 4), ("safe", 1), ("firmware", 8))}
    banks, bank, size = read.number(4), read.number(2), read.number(1)
    selection, digest = int.from_bytes(read.take(size), "little"), read.buffer()
    values = {int(number): bytes.fromhex(value) for number, value in quoted["pcrs"].items()}
    checks = {
        "the signature is ECDSA with SHA-256": algorithms == (0x18, 0xb),
        "the signature verifies":
            P256.is_signature(point, hashlib.sha256(attest).digest(), int.from_bytes(r, "big"), int.from_bytes(s, "big")),
        "the statement is a quote by a TPM": kind == (0xff544347, 0x8018),
        "the quote covers the key binding": extra == expected,
        "the qualified signer is a primary key of the endorsement hierarchy":
            signer == b"\0\x0b" + hashlib.sha256((0x4000000b).to_bytes(4, "big") + name).digest(),
        "the quote covers one bank, and exactly the registers": banks == 1 and bank in (0xb, 0xc)
            and selection == sum(1 << number for number in pcrs) and sorted(values) == pcrs,
        "the digest of the registers matches":
            digest == hashlib.sha256(b"".join(values[number] for number in sorted(values))).digest(),
        "no bytes follow": not (read.data or sig.data or key.data),
    }
    wrong = [what for what, holds in checks.items() if not holds]
    if wrong:
        raise ValueError("not true: " + ", ".join(wrong))
    facts.update({"bytes of the selection": size, "short numbers": sum(len(n) < 32 or n[0] == 0 for n in (r, s))})
    return facts
