"""The archive format of nats-server 2.15: ``entries`` in a compressed stream (``framing``). Pure."""
