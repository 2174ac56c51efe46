"""Ask for orders on the command line and publish them: `python produce.py HOST:PORT`. An empty id ends it."""

import json
import sys

from confluent_kafka import KafkaException, Producer

producer = Producer({"bootstrap.servers": sys.argv[1], "acks": "all"})


def report(error: object, message: object) -> None:
    if error is not None:
        raise KafkaException(error)
    print(f"{message.key().decode()} is in partition {message.partition()}, offset {message.offset()}", flush=True)


while order_id := input("order id: ").strip():
    order = {"order_id": order_id, "status": input("status: "), "city": input("city: ")}
    producer.produce("order-status", key=order["city"], value=json.dumps(order), on_delivery=report)
    producer.flush()
