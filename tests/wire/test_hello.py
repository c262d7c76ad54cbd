"""How both sides introduce themselves."""

import msgspec

from pelton.wire import Connect, ConnectOptions, Parser, ServerHello, encode_info, status_block
from tests.kit.wire_client import ClientParser, InfoLine, encode_connect, parse_info


def test_info_is_read_back() -> None:
    hello = ServerHello(server_id="i", server_name="n", version="2.15.1", host="::1", port=4222, headers=True, proto=1)
    (line,) = ClientParser().feed(encode_info(hello))
    assert isinstance(line, InfoLine)
    assert parse_info(line.facts) == hello


def test_connect_is_read_back() -> None:
    options = ConnectOptions(verbose=False, user="me", password="secret", echo=False)
    (line,) = Parser().feed(encode_connect(options))
    assert isinstance(line, Connect)
    assert msgspec.json.decode(line.options, type=ConnectOptions) == options


def test_a_client_that_says_nothing_is_verbose_and_pedantic_as_on_nats() -> None:
    options = ConnectOptions()
    assert (options.verbose, options.pedantic, options.echo) == (True, True, True)


def test_what_is_no_introduction() -> None:
    assert parse_info(b"[]") is None


def test_status_blocks() -> None:
    assert status_block(503) == b"NATS/1.0 503\r\n\r\n"
    block = status_block(408, "Request Timeout", Nats_Pending_Messages=3)
    assert block == b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n"
