"""The names of OpenTelemetry's semantic conventions for messaging, and our own beside them.

Ours begin with ``pelton.``. Payloads, arguments, results and headers are never attributes.
"""

from __future__ import annotations

from typing import Final

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
ERROR_TYPE: Final = "error.type"

SUBJECT: Final = "pelton.subject"
DELIVERY: Final = "pelton.delivery"
JOB_NAME: Final = "pelton.job.name"
JOB_KEY: Final = "pelton.job.key"
JOB_ATTEMPT: Final = "pelton.job.attempt"
JOB_INTERRUPTED: Final = "pelton.job.interrupted"
STEP: Final = "pelton.step"
