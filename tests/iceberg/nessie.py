"""Nessie's catalog, in a process of its own, over an emulated S3 that knows its vended keys and checks what is signed with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import requests

from emulators.processes import free_port, running
from iceberg.maven import fetched

RUNNER = "org.projectnessie.nessie:nessie-quarkus:0.99.0:jar:runner"
#: The recipient's share is the catalog's warehouse.
SHARE, BUCKET, REGION = "s", "lake", "eu-central-1"
_ROLE = "arn:aws:iam::123456789012:role/recipient"
_OPTIONS = "nessie.catalog.service.s3.default-options"


@dataclass(frozen=True)
class Nessie:
    """A running catalog; ``uri`` is a profile's ``icebergEndpoint``."""

    uri: str
    iam: Any

    def revoke(self) -> None:
        """From now on, keys that were vended open nothing."""
        self.iam.delete_role_policy(RoleName="recipient", PolicyName="files")

    def grant(self, *actions: str) -> None:
        """What vended keys may do."""
        policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}]}
        self.iam.put_role_policy(RoleName="recipient", PolicyName="files", PolicyDocument=json.dumps(policy))


@contextmanager
def nessie(java: str) -> Iterator[Nessie]:
    """Run the emulator and the catalog, whose data are in memory.

    Args:
        java: A Java of version 21 or newer.
    """
    s3_port, port, management = free_port(), free_port(), free_port()
    s3 = f"http://127.0.0.1:{s3_port}"
    with running([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(s3_port)], s3_port):
        key = _prepare(s3)
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": port,
            "quarkus.management.port": management,
            "quarkus.otel.sdk.disabled": "true",
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": SHARE,
            f"nessie.catalog.warehouses.{SHARE}.location": f"s3://{BUCKET}/warehouse",
            f"{_OPTIONS}.endpoint": s3,
            f"{_OPTIONS}.sts-endpoint": s3,
            f"{_OPTIONS}.region": REGION,
            f"{_OPTIONS}.path-style-access": "true",
            f"{_OPTIONS}.request-signing-enabled": "false",
            f"{_OPTIONS}.client-iam.enabled": "true",
            f"{_OPTIONS}.client-iam.assume-role": _ROLE,
            f"{_OPTIONS}.access-key": "urn:nessie-secret:quarkus:lake.keys",
            "lake.keys.name": key["AccessKeyId"],
            "lake.keys.secret": key["SecretAccessKey"],
        }
        command = [java, "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += [f"-D{name}={value}" for name, value in settings.items()]
        with running([*command, "-jar", str(fetched(RUNNER))], port, seconds=300), boto3_client("iam", s3, key) as iam:
            catalog = Nessie(f"http://127.0.0.1:{port}/iceberg", iam)
            catalog.grant("s3:*")
            yield catalog


def _prepare(s3: str) -> dict[str, str]:
    """Make the bucket, a provider who may do all, and the recipients' role; then have the emulator check each request."""
    anyone = {"AccessKeyId": "anyone", "SecretAccessKey": "anyone"}
    with boto3_client("iam", s3, anyone) as iam, boto3_client("s3", s3, anyone) as storage:
        storage.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        everything = json.dumps(
            {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
        )
        iam.create_user(UserName="provider")
        iam.put_user_policy(UserName="provider", PolicyName="all", PolicyDocument=everything)
        iam.create_role(RoleName="recipient", AssumeRolePolicyDocument=everything)
        key: dict[str, str] = iam.create_access_key(UserName="provider")["AccessKey"]
    requests.post(f"{s3}/moto-api/reset-auth", data="0", timeout=60).raise_for_status()
    return key


@contextmanager
def boto3_client(service: str, endpoint: str, key: dict[str, str]) -> Iterator[Any]:
    """A client of the emulator."""
    keys = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
    client = boto3.client(service, endpoint_url=endpoint, region_name=REGION, **keys)
    try:
        yield client
    finally:
        client.close()
