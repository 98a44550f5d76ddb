"""`async with producer.transaction() as transaction`: records and offsets that all become visible together, or none."""

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.client.errors import ClientError, RequestFailed
from headrace.client.produce.producer import ProducerCore
from headrace.client.produce.transaction_offsets import GroupMetadata, TransactionOffsets
from headrace.client.produce.transactions import ProducerTransactions, Step

if TYPE_CHECKING:
    from headrace.client.api.consumer import Consumer


class Transaction:
    """One transaction of a producer. Leaving its block commits; an exception aborts, and is raised on.

    What is sent within belongs to it. A record or offset that fails spoils all of it: the commit is refused, and
    everything is aborted.
    """

    def __init__(self, core: ProducerCore, transactions: ProducerTransactions) -> None:
        self._core = core
        self._transactions = transactions
        self._offsets = TransactionOffsets(core.cluster, transactions)
        self._is_over = False

    async def __aenter__(self) -> Self:
        self._transactions.begin()
        self._core.mark()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        if kind is None:
            try:
                await self.commit()
                return
            except ClientError:
                if self._transactions.steps.step is Step.ABORTABLE:
                    await self.abort()
                raise
        if self._transactions.steps.step in (Step.OPEN, Step.ABORTABLE):
            try:
                await self.abort()
            except ClientError as failed:
                assert error is not None
                error.add_note(f"the transaction could not be aborted either, and will be when it times out: {failed}")

    async def commit_offsets(
        self, consumer: "Consumer | GroupMetadata", offsets: Mapping[tuple[str, int], int] | None = None
    ) -> None:
        """Commit what a consumer has handed out, or the given offsets, with this transaction.

        Switch the consumer's own commits off (`auto_commit=False`): they would not wait for the transaction. For a
        group without members, give `GroupMetadata(group)` and the offsets.
        """
        if isinstance(consumer, GroupMetadata):
            await self._offsets.commit(consumer, offsets or {})
            return
        if consumer.settings.auto_commit:
            raise ClientError("the consumer commits by itself, whether or not the transaction does: auto_commit=False")
        wanted: Mapping[Any, int] = consumer.handed_out() if offsets is None else offsets
        try:
            member = consumer.group_metadata()
        except RequestFailed as error:
            # What is sent without its offsets would be sent again by whoever has the partitions now.
            self._transactions.steps.spoil(error)
            raise
        epochs: Mapping[Any, int] = consumer.leader_epochs(wanted)
        await self._offsets.commit(member, wanted, epochs)

    async def commit(self) -> None:
        """Commit before the end of the block. Raises what has spoilt the transaction."""
        while await self._core.settled():
            pass  # other tasks go on sending: what was taken while the transaction was open belongs to it
        self._core.check()
        producer = await self._transactions.commit()
        self._is_over = True
        self._core.renew(producer)

    async def abort(self) -> None:
        """Abort before the end of the block: nobody with read_committed sees anything of it."""
        await self._core.abandon(ClientError("the transaction was aborted"))
        self._core.failed.clear()
        nothing_sent = self._transactions.steps.is_empty
        producer = await self._transactions.abort()
        self._is_over = True
        if nothing_sent:
            self._core.rewind()  # nobody was asked, so there is no other epoch to begin at 0 in
        self._core.renew(producer)
