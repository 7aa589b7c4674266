"""The scripts with which testcontainers modules start Kafka's images, as they write them into the container."""

GO = """#!/bin/bash
source /etc/confluent/docker/bash-config
export KAFKA_ADVERTISED_LISTENERS="PLAINTEXT://localhost:32770,BROKER://6f2c1e0d:9092${EXTRA_LISTENERS:+,}"
echo Starting Kafka KRaft mode
sed -i '/KAFKA_ZOOKEEPER_CONNECT/d' /etc/confluent/docker/configure
echo 'kafka-storage format --ignore-formatted -t "$(kafka-storage random-uuid)" -c /none' \\
    >> /etc/confluent/docker/configure
echo '' > /etc/confluent/docker/ensure
/etc/confluent/docker/configure
/etc/confluent/docker/launch
"""
"""The module for Go, with Confluent's image."""

DOTNET_CONFLUENT = """#!/bin/bash
echo '' > /etc/confluent/docker/ensure
echo 'clientPort=2181' > zookeeper.properties
zookeeper-server-start zookeeper.properties &
export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:32770,BROKER://172.17.0.2:9093
exec /etc/confluent/docker/run
"""
"""The module for .NET, with Confluent's image."""

DOTNET_APACHE = """#!/bin/bash
export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:32770,BROKER://172.17.0.2:9093
exec /etc/kafka/docker/run
"""
"""The module for .NET, with Apache's image."""

NODE = """#!/bin/bash
export KAFKA_ADVERTISED_LISTENERS=BROKER://6f2c1e0d:9092,PLAINTEXT://localhost:32770
/etc/confluent/docker/run
"""
"""The module for Node, for an image whose tag is 8.0.0 or later, or with withKraft() and 7.4.0 or later."""

NODE_ZOOKEEPER = """#!/bin/bash
export KAFKA_ADVERTISED_LISTENERS=BROKER://6f2c1e0d:9092,PLAINTEXT://localhost:32770
echo '' > /etc/confluent/docker/ensure
echo 'clientPort=2181' > zookeeper.properties
echo 'dataDir=/var/lib/zookeeper/data' >> zookeeper.properties
echo 'dataLogDir=/var/lib/zookeeper/log' >> zookeeper.properties
zookeeper-server-start zookeeper.properties &
/etc/confluent/docker/run
"""
"""The module for Node, for an image with an earlier tag."""

RUST = """#!/usr/bin/env bash
export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:32770,BROKER://localhost:9093
/etc/kafka/docker/run
"""
"""The module for Rust, kafka::apache."""
