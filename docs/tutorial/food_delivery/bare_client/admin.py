"""Create the topics with a bare client: `python admin.py HOST:PORT`."""

import sys

from confluent_kafka.admin import AdminClient, NewTopic

admin = AdminClient({"bootstrap.servers": sys.argv[1]})
topics = [NewTopic(name, num_partitions=2, replication_factor=1) for name in ("order-status", "courier-location")]
for name, created in admin.create_topics(topics).items():
    created.result()
    print(f"{name} exists, two partitions")
