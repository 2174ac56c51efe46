"""What the saboteur does to log files, databases, the cluster and the lake: one function per fault, no timing.

Each function returns what it did, or `None` where it found nothing that it could do the fault to.
"""

from hailbus_demo.sabotage.deeds.cluster import invent
from hailbus_demo.sabotage.deeds.databases import (
    apply_twice,
    claim_unapplied,
    lose_effect,
    pay_twice,
    published_count,
    published_ids,
)
from hailbus_demo.sabotage.deeds.deed import PAYMENTS, RIDES, Deed, RideEvent
from hailbus_demo.sabotage.deeds.lake import delete_lake_row
from hailbus_demo.sabotage.deeds.log_files import LOST_RECORDS, alter, lose_record, lose_tail, reorder

__all__ = [
    "LOST_RECORDS",
    "PAYMENTS",
    "RIDES",
    "Deed",
    "RideEvent",
    "alter",
    "apply_twice",
    "claim_unapplied",
    "delete_lake_row",
    "invent",
    "lose_effect",
    "lose_record",
    "lose_tail",
    "pay_twice",
    "published_count",
    "published_ids",
    "reorder",
]
