"""Messages as Arrow columns: decoding, checksums, and the reading of a stream. Needs the extra `arrow`."""
