"""The cluster's controller: a request, an image and the time in, metadata records and a response out.

No decision changes the image. The driver appends the records and then applies them to `Controller.image`, so the next
decision knows of them; a response is sent when its records are committed.
"""

from hailbus_broker.cluster.controller.controller import Controller
from hailbus_broker.cluster.controller.decision import Decision
from hailbus_broker.cluster.controller.naming import MAX_NAME_LENGTH, check_topic_name, is_protected
from hailbus_broker.cluster.controller.producer_ids import PRODUCER_ID_BLOCK
from hailbus_broker.cluster.controller.topics import MAX_PARTITIONS, MAX_PARTITIONS_PER_REQUEST, NewTopic

__all__ = [
    "MAX_NAME_LENGTH",
    "MAX_PARTITIONS",
    "MAX_PARTITIONS_PER_REQUEST",
    "PRODUCER_ID_BLOCK",
    "Controller",
    "Decision",
    "NewTopic",
    "check_topic_name",
    "is_protected",
]
