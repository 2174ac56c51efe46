"""Print the orders that this member of a group receives, until Ctrl-C: `python consume.py HOST:PORT GROUP`."""

import json
import signal
import sys

from confluent_kafka import Consumer

bootstrap, group = sys.argv[1:]
consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6000,
    }
)
stopped: list[int] = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: stopped.append(number))
consumer.subscribe(["order-status"])
while not stopped:
    message = consumer.poll(0.2)
    if message is None or message.error():
        continue
    order = json.loads(message.value())
    print(
        f"Partition:{message.partition()} {order['city']}: order {order['order_id']} is {order['status']}", flush=True
    )
    consumer.commit(message, asynchronous=False)
consumer.close()
