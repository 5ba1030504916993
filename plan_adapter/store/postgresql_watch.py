"""Listening to a PostgreSQL server for the signals of any process."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from plan_adapter.store.changes import CHANNEL, Changes

log = logging.getLogger(__name__)

TURN_SECONDS = 1.0
"""How often it is asked whether the watch must go on."""

PING_TURNS = 15
"""After how many turns the server is asked for a sign of life: a connection that a firewall dropped says nothing by itself."""

AGAIN_SECONDS = 0.5


async def listen(engine: AsyncEngine, changes: Changes, store: str) -> None:
    """Tell `changes` of every signal, and once whenever a connection was made, until it need not go on; `engine` keeps no pool.

    A connection that is lost is made again; meanwhile callers wait out their time.
    """
    try:
        while changes.goes_on():
            try:
                await _listen_once(engine, changes)
            except Exception as error:  # the driver's, the system's: whatever it is, the next connection may do better
                log.debug("%s cannot be listened to, which is tried again: %s", store, error)
                await asyncio.sleep(AGAIN_SECONDS)
    finally:
        await engine.dispose()


async def _listen_once(engine: AsyncEngine, changes: Changes) -> None:
    """Listen on one connection until it is lost or the watch need not go on."""
    async with engine.connect() as connection:
        # asyncpg's own connection: SQLAlchemy has no door to its notifications.
        driver: Any = (await connection.get_raw_connection()).driver_connection
        lost = asyncio.Event()
        driver.add_termination_listener(lambda _connection: lost.set())  # pyright: ignore[reportUnknownLambdaType]  # asyncpg has no types
        await driver.add_listener(CHANNEL, lambda *_of_signal: changes.tell())  # pyright: ignore[reportUnknownLambdaType]
        changes.tell()  # whatever happened before may have gone unheard
        turn = 0
        while not lost.is_set() and changes.goes_on():
            with suppress(TimeoutError):
                async with asyncio.timeout(TURN_SECONDS):
                    await lost.wait()
            turn += 1
            if turn % PING_TURNS == 0:
                await driver.execute("SELECT 1", timeout=TURN_SECONDS * 5)
        if lost.is_set():
            await connection.invalidate()
