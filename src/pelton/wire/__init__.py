"""The client protocol of NATS, without sockets: what a client sends becomes commands, and what it is sent bytes."""

from pelton.wire.protocol import OK as OK
from pelton.wire.protocol import PING as PING
from pelton.wire.protocol import PONG as PONG
from pelton.wire.protocol import AckRun as AckRun
from pelton.wire.protocol import Command as Command
from pelton.wire.protocol import Connect as Connect
from pelton.wire.protocol import ConnectionState as ConnectionState
from pelton.wire.protocol import ConnectOptions as ConnectOptions
from pelton.wire.protocol import Hpub as Hpub
from pelton.wire.protocol import KnownLines as KnownLines
from pelton.wire.protocol import Parser as Parser
from pelton.wire.protocol import Ping as Ping
from pelton.wire.protocol import Pong as Pong
from pelton.wire.protocol import Pub as Pub
from pelton.wire.protocol import PubRun as PubRun
from pelton.wire.protocol import ServerHello as ServerHello
from pelton.wire.protocol import Sub as Sub
from pelton.wire.protocol import Unsub as Unsub
from pelton.wire.protocol import Violation as Violation
from pelton.wire.protocol import WireLimits as WireLimits
from pelton.wire.protocol import encode_err as encode_err
from pelton.wire.protocol import encode_info as encode_info
from pelton.wire.protocol import encode_msg as encode_msg
from pelton.wire.protocol import status_block as status_block
