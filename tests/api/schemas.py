"""The official JSON schemas, if they are stored beside the repository: validation of our JSON."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator  # type: ignore[import-untyped]
from referencing import Registry, Resource

NATS = Path(__file__).resolve().parents[3] / "shared" / "nats"
needs_nats = pytest.mark.skipif(not NATS.is_dir(), reason=f"NATS's schemas and errors are not at {NATS}")


@cache
def _registry() -> Registry:
    registry: Registry = Registry()
    for path in (NATS / "schemas").glob("*.json"):
        resource = Resource.from_contents(json.loads(path.read_text()))
        base = f"https://nats.io/schemas/jetstream/api/v1/{path.name}"
        registry = registry.with_resource(base, resource).with_resource(path.name, resource)
    return registry


def schema_errors(name: str, body: bytes) -> list[str]:
    """Return how the schema `name` (a file's stem, or ``definitions.json#/definitions/x``) fails for a body."""
    reference = name if "#" in name else f"{name}.json"
    schema = {"$ref": f"https://nats.io/schemas/jetstream/api/v1/{reference}"}
    data: Any = json.loads(body)
    return [error.message for error in Draft7Validator(schema, registry=_registry()).iter_errors(data)]
