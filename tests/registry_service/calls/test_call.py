"""Checks what one call keeps for its RPC, and which of its limits fires, at the exact bounds."""

import asyncio

import pytest

from naru.v1.execution_pb2 import CallToolRequest
from registry_service.calls.call import MESSAGE_KEPT, PROGRESS_KEPT, Call, Limit, Mailbox, time_limit
from registry_service.identity.caller import Caller
from registry_service.telemetry.metrics import METRICS

CALLER = Caller(admin=False, credential=None, request_id="", traceparent="", tracestate="")


def dropped() -> float:
    return METRICS.get_sample_value("naru_progress_dropped_total") or 0


def read(mailbox: Mailbox) -> list[float]:
    values = []
    while (progress := mailbox.next_progress()) is not None:
        values.append(progress.progress)
    return values


class TestMailbox:
    async def test_it_keeps_as_much_as_it_says_and_drops_the_oldest_beyond(self):
        mailbox, before = Mailbox(), dropped()
        for number in range(PROGRESS_KEPT):
            mailbox.report(number, None, "")
        assert dropped() == before
        mailbox.report(PROGRESS_KEPT, None, "")
        assert dropped() == before + 1
        assert read(mailbox) == list(range(1, PROGRESS_KEPT + 1))

    @pytest.mark.parametrize("later", [5.0, 4.0, float("nan"), float("-inf")])
    async def test_progress_that_does_not_grow_is_dropped_and_wakes_nobody(self, later: float):
        mailbox = Mailbox()
        mailbox.report(5, None, "")
        await mailbox.news()
        before = dropped()
        mailbox.report(later, None, "")
        assert dropped() == before + 1
        assert read(mailbox) == [5]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await mailbox.news()

    async def test_integers_keep_the_digits_that_a_double_would_round(self):
        mailbox, before = Mailbox(), dropped()
        for value in (2**53, 2**53 + 1, 2**53 + 2, 10**308 + 1):
            mailbox.report(value, value + 1, "")
        mailbox.report(10**400, None, "")
        kept = [mailbox.next_progress() for _ in range(4)]
        assert [progress.progress_digits for progress in kept if progress] == ["", str(2**53 + 1), "", str(10**308 + 1)]
        assert [progress.total_digits for progress in kept if progress][:3] == [str(2**53 + 1), "", str(2**53 + 3)]
        assert dropped() == before + 1
        mailbox.report(10**308 + 2, 10**400, "")
        last = mailbox.next_progress()
        assert last is not None
        assert not last.HasField("total")

    async def test_a_message_is_cut_where_it_says(self):
        mailbox = Mailbox()
        mailbox.report(1, None, "가" * MESSAGE_KEPT)
        mailbox.report(2, 3, "가" * MESSAGE_KEPT + "나")
        for _ in range(2):
            progress = mailbox.next_progress()
            assert progress is not None
            assert progress.message == "가" * MESSAGE_KEPT
        assert progress is not None
        assert progress.total == 3

    async def test_a_ring_before_the_wait_and_one_while_the_reader_looks_are_both_heard(self):
        """The reader looks once for each of them, however long its looking took."""
        mailbox = Mailbox()
        mailbox.ring()
        async with asyncio.timeout(1):
            await mailbox.news()
            mailbox.report(1, None, "")
            mailbox.ring()
            await mailbox.news()
        assert read(mailbox) == [1]

    async def test_its_reader_is_woken_from_its_wait(self):
        mailbox = Mailbox()
        waiting = asyncio.ensure_future(mailbox.news())
        await asyncio.sleep(0)
        assert not waiting.done()
        mailbox.ring()
        async with asyncio.timeout(1):
            await waiting


class TestTimeLimit:
    @pytest.mark.parametrize(
        ("wanted", "name", "seconds"),
        [(None, "server", 10), (0.5, "tool", 0.5), (10, "tool", 10), (60, "tool", 60), (60.5, "server", 60)],
    )
    async def test_without_a_clients_limit_the_tools_counts_up_to_the_greatest(self, wanted, name, seconds):
        call = Call(CallToolRequest(), CALLER, None)
        assert time_limit(call, wanted, 10, 60, 100.0) == Limit(name, seconds, 100.0 + seconds)

    @pytest.mark.parametrize(
        ("client_seconds", "kept"), [(1.0, 0.1), (4.99, 0.499), (5.0, 0.5), (5.01, 0.5), (60, 0.5)]
    )
    async def test_a_tenth_of_the_clients_limit_is_kept_for_the_answer_but_at_most_half_a_second(
        self, client_seconds: float, kept: float
    ):
        call = Call(CallToolRequest(), CALLER, client_seconds)
        assert call.client_deadline is not None
        now = call.client_deadline - client_seconds
        limit = time_limit(call, 3600, 10, 3600, now)
        assert (limit.name, limit.seconds) == ("client", client_seconds)
        assert limit.at == pytest.approx(call.client_deadline - kept)
        assert call.told_by(1 / 2) == pytest.approx(call.client_deadline - kept / 2)

    @pytest.mark.parametrize(("earlier", "name"), [(-0.001, "client"), (0.0, "tool"), (0.001, "tool")])
    async def test_of_two_limits_the_one_that_fires_first_is_named_and_at_the_same_time_the_tools(
        self, earlier: float, name: str
    ):
        call = Call(CallToolRequest(), CALLER, 10.0)
        assert call.client_deadline is not None
        now = 100.0
        call.client_deadline = now + 2.5
        wanted = 2.0 - earlier
        assert time_limit(call, wanted, 10, 60, now).name == name

    async def test_a_call_without_a_clients_limit_has_no_last_moment(self):
        assert Call(CallToolRequest(), CALLER, None).told_by(1) is None
