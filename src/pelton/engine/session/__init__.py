"""A transaction as a value: one connection, the registry of streams and consumers, and effects."""

from pelton.engine.session.catalogue import Account as Account
from pelton.engine.session.catalogue import Key as Key
from pelton.engine.session.consumers import incoming as incoming
from pelton.engine.session.lifecycle import advise_paused as advise_paused
from pelton.engine.session.lifecycle import consumers_moved as consumers_moved
from pelton.engine.session.lifecycle import create_consumer as create_consumer
from pelton.engine.session.lifecycle import create_stream as create_stream
from pelton.engine.session.lifecycle import delete_consumers as delete_consumers
from pelton.engine.session.lifecycle import delete_stream as delete_stream
from pelton.engine.session.lifecycle import retire as retire
from pelton.engine.session.lifecycle import sweep as sweep
from pelton.engine.session.lifecycle import update_consumer as update_consumer
from pelton.engine.session.lifecycle import update_stream as update_stream
from pelton.engine.session.registry import Registry as Registry
from pelton.engine.session.session import Committed as Committed
from pelton.engine.session.session import Session as Session
from pelton.engine.session.session import SessionMark as SessionMark
from pelton.engine.session.session import StoreClock as StoreClock
from pelton.engine.session.session import Surroundings as Surroundings
from pelton.engine.session.session import Wakes as Wakes
