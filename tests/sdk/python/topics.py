"""Every topic, decoded by public packages alone, with the schemas that Weir serves.

Nothing here knows Weir but its addresses: the ids in the records lead to the schemas. Prints one line a topic.
"""

import os
import sys

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

registry = SchemaRegistryClient({"url": os.environ["REGISTRY_URL"]})
decode = AvroDeserializer(registry)
consumer = Consumer(
    {
        "bootstrap.servers": os.environ["KAFKA_BROKERS"],
        "group.id": "a-reader-in-another-language",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
)
prefix = os.environ["TOPIC_PREFIX"]
subjects = set(registry.get_subjects())
names = sorted(name for name in consumer.list_topics(timeout=20).topics if name.startswith(prefix))

for name in names:
    if name.endswith(".dead-letters"):
        continue
    kinds = {}
    for partition in consumer.list_topics(name, timeout=20).topics[name].partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=20)
        consumer.assign([TopicPartition(name, partition, low)])
        at = low
        while at < high:
            message = consumer.poll(20)
            assert message is not None, f"{name}/{partition} ends at {at}, not at {high}"
            assert message.error() is None, message.error()
            at = message.offset() + 1
            record = decode(message.value(), SerializationContext(name, MessageField.VALUE))
            assert isinstance(record, dict) and record, record
            schema = registry.get_schema(int.from_bytes(message.value()[1:5], "big"))
            kind = schema.schema_str.split('"name": "', 1)[1].split('"', 1)[0]
            assert f"{name}-weir.{kind}" in subjects, f"{name}-weir.{kind} is no subject of {len(subjects)}"
            kinds[kind] = kinds.get(kind, 0) + 1
    consumer.unassign()
    print("ok", name[len(prefix) :], *(f"{kind}={count}" for kind, count in sorted(kinds.items())))

consumer.close()
sys.exit(0)
