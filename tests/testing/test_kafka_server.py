"""The fixture `kafka_server`: producers and consumers of another client, and the clock of the server."""

from __future__ import annotations

from sparklog.testing.kafka_server import KafkaServer


def test_a_producer_and_a_group_of_another_client(kafka_server: KafkaServer) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(bootstrap_servers=kafka_server.bootstrap)
    assert producer.send("made", b"a").get(10).offset == 0
    producer.close()
    assert kafka_server.root.topics() == ["made"]
    consumer = KafkaConsumer(
        "made", bootstrap_servers=kafka_server.bootstrap, group_id="g", auto_offset_reset="earliest"
    )
    assert next(consumer).value == b"a"
    consumer.close()
    assert kafka_server.groups.group("g").committed()["made", 0].offset == 1


def test_the_clock_is_controlled_by_the_test(kafka_server: KafkaServer) -> None:
    from kafka import KafkaConsumer

    topic = kafka_server.root.create_topic("t", configs={"message.timestamp.type": "LogAppendTime"})
    topic.append({"value": ["a"]})
    first_ms = kafka_server.clock.now_ms
    kafka_server.clock.advance(days=8)
    topic.append({"value": ["b"]})
    consumer = KafkaConsumer("t", bootstrap_servers=kafka_server.bootstrap, auto_offset_reset="earliest")
    times = [next(consumer).timestamp for _ in range(2)]
    consumer.close()
    assert times == [first_ms, first_ms + 8 * 86_400_000]
