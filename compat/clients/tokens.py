"""An issuer of tokens for OAUTHBEARER, with its keys in a file."""

from __future__ import annotations

import json
import time
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

AUDIENCE, ISSUER = "kafka", "https://issuer.example"


class Issuer:
    """Signs tokens; `settings` are those of a broker that accepts them."""

    def __init__(self, directory: Path) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        path = directory / "jwks.json"
        path.write_text(json.dumps({"keys": [{**public, "kid": "first", "use": "sig", "alg": "RS256"}]}))
        self.settings = {
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,SCRAM-SHA-256,OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": path.as_uri(),
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
        }

    def token(self, user: str, lifetime_s: float = 3600) -> str:
        """A token that a broker accepts for a time; one that has expired if that is negative."""
        now_s = time.time()
        claims = {"sub": user, "aud": AUDIENCE, "iss": ISSUER, "iat": now_s - 600, "exp": now_s + lifetime_s}
        return jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": "first"})
