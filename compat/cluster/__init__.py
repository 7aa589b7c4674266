"""Clusters of several processes: each node is kbroker or Apache Kafka, with the same properties file for either."""

from compat.cluster.nodes import KAFKA, KBROKER, Node, ProcessCluster

__all__ = ["KAFKA", "KBROKER", "Node", "ProcessCluster"]
