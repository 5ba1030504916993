"""`GateMessages`: the messages about gates that `plan desk` sent to chats and by e-mail, so that it sends nothing twice."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, and_, select, update

from plan_adapter.store.database.columns import database_now, insert_into, now_of
from plan_adapter.store.database.database import StorePart, reads, writes
from plan_adapter.store.database.rows import Row, context_columns, context_of
from plan_adapter.store.database.tables import IS_UNFINISHED, gate_messages, gates
from plan_adapter.store.plans import seen_by

CLOSED = "closed"
"""What a message shows that needs no other update, because it says how its gate was answered."""

CLAIM_SECONDS = 60
"""How long one process may take to send a message. Later, another one sends it, because the first may have died."""


@dataclass(frozen=True, slots=True)
class GateMessage:
    """A message about a gate on one channel, as it was last recorded."""

    gate_id: str
    channel: str  # slack, teams or mail
    shown: str  # how far the gate was when it was sent: empty if it was not sent yet, and CLOSED at the end
    reference: str | None  # by which the channel knows it; None: not sent yet
    not_before: datetime  # until then, a process sends it, or waits to try again
    failures: int  # since it was last sent


class GateMessages(StorePart):
    """The messages about the gates of a store."""

    @reads
    def unfinished(self, connection: Connection, channel: str) -> list[GateMessage]:
        """Return the messages on `channel` that do not say yet how their gate was answered."""
        query = select(gate_messages).where(gate_messages.c.channel == channel, IS_UNFINISHED)
        return [_message_of(row) for row in connection.execute(seen_by(self.tenant_id, query, gate_messages)).mappings()]

    @writes
    def claim(self, connection: Connection, gate_id: str, channel: str, *, shown: str) -> GateMessage | None:
        """Claim the message about a gate for this process, which is about to send or update it, and return it.

        `shown` is what it showed when the caller looked. Returns None if that has changed, if another process has claimed it, or if it is
        too early to try again.
        """
        gate = connection.execute(seen_by(self.tenant_id, select(gates).where(gates.c.id == gate_id), gates)).mappings().first()
        if gate is None:
            return None
        until = now_of(connection) + timedelta(seconds=CLAIM_SECONDS)
        row = {
            **context_columns(context_of(gate)),
            **{"gate_id": gate_id, "channel": channel, "run_id": gate["run_id"], "shown": "", "not_before": until, "failures": 0},
        }
        is_free = and_(gate_messages.c.shown == shown, gate_messages.c.not_before <= database_now())
        key = [gate_messages.c.gate_id, gate_messages.c.channel]
        claimed = insert_into(gate_messages, connection.dialect.name).values(row)
        claimed = claimed.on_conflict_do_update(index_elements=key, set_={"not_before": until}, where=is_free).returning(gate_messages)
        found = connection.execute(claimed).mappings().first()
        return None if found is None else _message_of(found)

    @writes
    def record(self, connection: Connection, message: GateMessage, *, shown: str, reference: str | None) -> None:
        """Record that a claimed message was sent, and what it shows. Without a `reference`, it was not sent, and never will be."""
        now = now_of(connection)
        sent_at = None if reference is None else now
        sent = {"shown": shown, "reference": reference, "not_before": now, "failures": 0, "sent_at": sent_at}
        connection.execute(update(gate_messages).where(_is(message)).values(sent))

    @writes
    def postpone(self, connection: Connection, message: GateMessage, *, seconds: float) -> None:
        """Record that a claimed message could not be sent, and when to try again."""
        later = {"not_before": now_of(connection) + timedelta(seconds=seconds), "failures": message.failures + 1}
        connection.execute(update(gate_messages).where(_is(message)).values(later))


def _is(message: GateMessage) -> ColumnElement[bool]:
    return and_(gate_messages.c.gate_id == message.gate_id, gate_messages.c.channel == message.channel)


def _message_of(row: Row) -> GateMessage:
    return GateMessage(**{name: row[name] for name in ("gate_id", "channel", "shown", "reference", "not_before", "failures")})
