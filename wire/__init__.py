"""The Kafka protocol alone: messages, stored records, record batches, frames. Sans-IO, and free of the broker.

    from wire.codec import decode, encode
    from wire.framing import FrameBuffer, decode_request_header, encode_response_frame
    from wire.messages.metadata import MetadataRequest, MetadataResponse

    request = decode(MetadataRequest, 12, body)            # Malformed if the bytes do not decode, nothing else
    frame = encode_response_frame(correlation_id, MetadataResponse(brokers=[...], topics=[...]), 12)

    messages/         requests and responses, a file an API, each in every version of Apache Kafka 4.3.1's schemas
    stored/           the records of the metadata log and of internal topics, and their frames
    schema.py         how they are declared
    types.py          the wire types of the annotations
    codec.py          encode() and decode(); the parser of a (class, version) is generated at its first use
    constructs.py     with structs.py and codegen.py, behind codec.py: constructs of the wire types, and code from them
    framing.py        FrameBuffer cuts a stream into frames; request and response headers
    record_batch.py   record batches as views over bytes; record_walk.py, record_columns.py: what is inside
    compression.py    the codecs, bounded
    errors.py         ErrorCode, KafkaError, and Malformed for bytes that do not decode

Constructors are keyword-only. A field is optional where Kafka's schema states a default, where some versions lack it,
for throttle_time_ms and for error_code; a forgotten one is an error of the type checker and a TypeError. Each encoding
takes a version: a value that the version has no field for is dropped if Kafka calls the field ignorable, and is
NotInVersion otherwise. A tagged struct that nobody sent is None.
"""
