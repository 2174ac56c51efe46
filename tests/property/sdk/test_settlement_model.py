"""The settlement core against models: the settled prefix against a plain list, the lanes against what they promise."""

from __future__ import annotations

from hailbus import TopicPartition
from hailbus.settlement import Lane, Lanes, Names, SettledPrefix
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


class PrefixMachine(RuleBasedStateMachine):
    """Receives with gaps, settles in any order; the model is the list of received offsets and a set."""

    def __init__(self) -> None:
        super().__init__()
        self.prefix = SettledPrefix()
        self.received: list[int] = []
        self.done: set[int] = set()
        self.last_committable: int | None = None

    @rule(gap=st.integers(1, 4), count=st.integers(1, 5))
    def receive(self, gap: int, count: int) -> None:
        offset = (self.received[-1] if self.received else -1) + gap
        for offset in range(offset, offset + count):  # noqa: B020 consecutive from there
            self.prefix.received(offset)
            self.received.append(offset)

    @precondition(lambda self: len(self.done) < len(self.received))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from([o for o in self.received if o not in self.done]))
        self.prefix.settled(offset)
        self.done.add(offset)

    @precondition(lambda self: len(self.done) < len(self.received))
    @rule(data=st.data())
    def settle_some(self, data: st.DataObject) -> None:
        open_ = [offset for offset in self.received if offset not in self.done]
        offsets = data.draw(st.lists(st.sampled_from(open_), unique=True))
        self.prefix.settled_all(offsets)
        self.done.update(offsets)

    @invariant()
    def commits_the_contiguous_settled_prefix_and_no_more(self) -> None:
        expected = None
        if self.received:
            open_ = [offset for offset in self.received if offset not in self.done]
            expected = open_[0] if open_ else self.received[-1] + 1
        assert self.prefix.committable == expected

    @invariant()
    def committable_never_retreats(self) -> None:
        now = self.prefix.committable
        assert self.last_committable is None or (now is not None and now >= self.last_committable)
        self.last_committable = now

    @invariant()
    def counts_what_is_open(self) -> None:
        assert self.prefix.unsettled_count == len(self.received) - len(self.done)


class LanesMachine(RuleBasedStateMachine):
    """Pushes, runs, delays, wakes and drops; per lane the order is kept and one runner has it."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: Lanes[int] = Lanes()
        self.next = 0
        self.waiting_items: dict[tuple[TopicPartition, str], list[int]] = {}
        self.running: list[Lane[int]] = []
        self.delayed: list[Lane[int]] = []
        self.finished: dict[tuple[TopicPartition, str], list[int]] = {}
        self.direct: list[tuple[TopicPartition, str, int, Names[int]]] = []

    @rule(tp=st.sampled_from([TP, OTHER]), key=st.sampled_from("abc"))
    def push(self, tp: TopicPartition, key: str) -> None:
        self.lanes.push(tp, key, self.next)
        self.waiting_items.setdefault((tp, key), []).append(self.next)
        self.next += 1

    @rule(tp=st.sampled_from([TP, OTHER]), key=st.sampled_from("abc"))
    def run_without_a_lane(self, tp: TopicPartition, key: str) -> None:
        names = self.lanes.names(tp)
        if key not in names:
            assert not any(
                (lane.partition, lane.name) == (tp, key) for lane in (*self.running, *self.delayed) if not lane.dropped
            )
            names[key] = None
            self.direct.append((tp, key, self.next, names))
            self.next += 1

    @precondition(lambda self: bool(self.direct))
    @rule(data=st.data(), fails=st.booleans())
    def end_without_a_lane(self, data: st.DataObject, fails: bool) -> None:
        entry = data.draw(st.sampled_from(self.direct))
        self.direct.remove(entry)
        tp, key, item, names = entry
        is_current = self.lanes.names(tp) is names
        if fails:
            lane = self.lanes.adopt(tp, names, key, item)
            self.running.append(lane)
            assert lane.dropped is not is_current
            if is_current:
                self.waiting_items.setdefault((tp, key), []).insert(0, item)
            return
        behind = names.pop(key, None)
        if behind is not None:
            self.lanes.follow(names, behind)
        if is_current:
            assert item > max(self.finished.get((tp, key), [-1]))
            self.finished.setdefault((tp, key), []).append(item)

    @rule()
    def take(self) -> None:
        lane = self.lanes.take()
        if lane is None:
            idle = {name for name, items in self.waiting_items.items() if items}
            busy = {(lane.partition, lane.name) for lane in (*self.running, *self.delayed) if not lane.dropped}
            busy |= {(tp, key) for tp, key, _, names in self.direct if self.lanes.names(tp) is names}
            assert idle <= busy  # nothing runnable is left lying
            return
        assert all(lane is not other for other in (*self.running, *self.delayed))
        assert not any(
            (lane.partition, lane.name) == (other.partition, other.name) for other in self.running if not other.dropped
        )
        assert not any(
            (lane.partition, lane.name) == (tp, key)
            for tp, key, _, names in self.direct
            if self.lanes.names(tp) is names
        )
        self.running.append(lane)

    @precondition(lambda self: bool(self.running))
    @rule(data=st.data(), then=st.sampled_from(["finish", "delay"]))
    def end(self, data: st.DataObject, then: str) -> None:
        lane = data.draw(st.sampled_from(self.running))
        self.running.remove(lane)
        if then == "delay":
            self.lanes.delay(lane)
            self.delayed.append(lane)
            return
        name = (lane.partition, str(lane.name))
        if not lane.dropped:
            item = lane.items[0]
            assert item == self.waiting_items[name].pop(0)
            assert item > max(self.finished.get(name, [-1]))
            self.finished.setdefault(name, []).append(item)
        self.lanes.finish(lane)
        self.lanes.release(lane)

    @precondition(lambda self: bool(self.delayed))
    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from(self.delayed))
        self.delayed.remove(lane)
        self.lanes.wake(lane)

    @rule(tp=st.sampled_from([TP, OTHER]))
    def drop(self, tp: TopicPartition) -> None:
        self.lanes.drop(tp)
        for name in list(self.waiting_items):
            if name[0] == tp:
                del self.waiting_items[name]

    @invariant()
    def counts_agree(self) -> None:
        assert self.lanes.item_count == sum(len(items) for items in self.waiting_items.values())
        assert self.lanes.running_count == len(self.running)


PrefixMachine.TestCase.settings = settings(max_examples=200, deadline=None)
LanesMachine.TestCase.settings = settings(max_examples=200, deadline=None)
TestPrefix = PrefixMachine.TestCase
TestLanes = LanesMachine.TestCase
