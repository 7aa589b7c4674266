"""The APIs that a node sends to the controller for itself, and those that it may also send for its clients.

The second group has the same handlers as on a broker's listener, because tools send them to controllers too
(--bootstrap-controller, KIP-919). Three differ: a controller decides changes of settings without the checks that a
broker makes first, and describes itself in DescribeCluster (describe_cluster.py).
"""

from __future__ import annotations

from functools import partial

from kbroker.handlers.acls import create_acls, delete_acls, describe_acls
from kbroker.handlers.api_versions import api_versions
from kbroker.handlers.client_quotas import alter_client_quotas
from kbroker.handlers.controller import (
    alter_partition_reassignments,
    alter_user_scram_credentials,
    create_partitions,
    describe_quorum,
    elect_leaders,
    forwards,
    unregister_broker,
    update_features,
)
from kbroker.handlers.create_topics import create_topics
from kbroker.handlers.delete_topics import delete_topics
from kbroker.handlers.describe_configs import describe_configs
from kbroker.handlers.list_partition_reassignments import list_partition_reassignments
from kbroker.handlers.permits import permit_settings
from kbroker.handlers.sasl import sasl_authenticate, sasl_handshake
from kbroker.security.authorizing import Operation
from wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from wire.messages.alter_configs import AlterConfigsRequest
from wire.messages.alter_partition import AlterPartitionRequest
from wire.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from wire.messages.broker_registration import BrokerRegistrationRequest
from wire.messages.controller_registration import ControllerRegistrationRequest
from wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest

__all__ = [
    "allocate_producer_ids",
    "alter_client_quotas",
    "alter_configs",
    "alter_partition",
    "alter_partition_reassignments",
    "alter_user_scram_credentials",
    "api_versions",
    "assign_replicas_to_dirs",
    "broker_heartbeat",
    "broker_registration",
    "controller_registration",
    "create_acls",
    "create_partitions",
    "create_topics",
    "delete_acls",
    "delete_topics",
    "describe_acls",
    "describe_configs",
    "describe_quorum",
    "elect_leaders",
    "incremental_alter_configs",
    "list_partition_reassignments",
    "sasl_authenticate",
    "sasl_handshake",
    "unregister_broker",
    "update_features",
]

alter_configs = forwards(AlterConfigsRequest, versions="0-2", permits=permit_settings)
incremental_alter_configs = forwards(IncrementalAlterConfigsRequest, versions="0-1", permits=permit_settings)

_of_nodes = partial(forwards, needs=Operation.CLUSTER_ACTION)
allocate_producer_ids = _of_nodes(AllocateProducerIdsRequest, versions="0")
alter_partition = _of_nodes(AlterPartitionRequest, versions="2-3")
assign_replicas_to_dirs = _of_nodes(AssignReplicasToDirsRequest, versions="0")
broker_heartbeat = _of_nodes(BrokerHeartbeatRequest, versions="0-1")
broker_registration = _of_nodes(BrokerRegistrationRequest, versions="0-4")
controller_registration = _of_nodes(ControllerRegistrationRequest, versions="0")
