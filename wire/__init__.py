"""The Kafka protocol: messages, stored records, record batches, frames. Sans-IO and independent of the broker.

    from wire.codec import decode, encode
    from wire.framing import FrameBuffer, decode_request_header, encode_response_frame
    from wire.messages.metadata import MetadataRequest, MetadataResponse

    request = decode(MetadataRequest, 12, body)            # raises only Malformed if the bytes do not decode
    frame = encode_response_frame(correlation_id, MetadataResponse(brokers=[...], topics=[...]), 12)

    messages/         requests and responses, one file per API, in every version of Apache Kafka 4.3.1's schemas
    stored/           the records of the metadata log and of internal topics, and their frames
    schema.py         the declarations of messages
    types.py          the wire types of the annotations
    codec.py          encode() and decode(); the parser of a (class, version) is generated at its first use
    constructs.py     with structs.py and codegen.py, behind codec.py: constructs of the wire types, and code from them
    framing.py        FrameBuffer cuts a stream into frames; request and response headers
    batch_header.py   the layout of the header of a record batch
    record_batch.py   record batches as views over bytes; record_walk.py and record_columns.py check their records
    compression.py    the codecs, with bounded memory
    errors.py         ErrorCode, KafkaError, and Malformed for bytes that do not decode

Constructors are keyword-only. A field is optional if Kafka's schema states a default, if some versions lack it, or if
it is throttle_time_ms or error_code. Omitting a required field is a type checker error and a TypeError. Each encoding
takes a version: a value whose field is missing in that version is dropped if Kafka calls the field ignorable, and
raises NotInVersion otherwise. A tagged struct that was not sent is None.
"""
