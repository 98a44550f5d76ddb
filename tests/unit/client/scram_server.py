"""The other side of a login by SCRAM."""

import base64
import hashlib
import hmac


class Server:
    """The other side of SCRAM, written from the RFC's formulas rather than from the client."""

    def __init__(self, hash_name: str, password: str, salt: bytes = b"salty", iterations: int = 4096) -> None:
        self.hash_name, self.salt, self.iterations = hash_name, salt, iterations
        self.salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)

    def first(self, message: bytes) -> bytes:
        self.first_bare = message.removeprefix(b"n,,")
        nonce = dict(part.split("=", 1) for part in self.first_bare.decode().split(","))["r"]
        self.said = f"r={nonce}more,s={base64.b64encode(self.salt).decode()},i={self.iterations}".encode()
        return self.said

    def last(self, message: bytes) -> bytes:
        bare, _, proof = message.rpartition(b",p=")
        spoken = self.first_bare + b"," + self.said + b"," + bare
        client_key = hmac.digest(self.salted, b"Client Key", self.hash_name)
        stored = hashlib.new(self.hash_name, client_key).digest()
        expected = bytes(a ^ b for a, b in zip(client_key, hmac.digest(stored, spoken, self.hash_name)))
        if base64.b64decode(proof) != expected:
            return b"e=invalid-proof"
        signature = hmac.digest(hmac.digest(self.salted, b"Server Key", self.hash_name), spoken, self.hash_name)
        return b"v=" + base64.b64encode(signature)
