"""Settings of client quotas."""

from __future__ import annotations

from kbroker.config.settings import setting, settings


@settings
class QuotaSettings:
    """How the rates are measured that client quotas limit. The quotas themselves are metadata; see docs/quotas.md."""

    quota_window_num: int = setting(
        default=11, at_least=1, doc="Number of windows over which the rates of clients are measured."
    )
    quota_window_size_seconds: int = setting(default=1, at_least=1, doc="Length of each of these windows.")
    controller_quota_window_num: int = setting(
        default=11,
        at_least=1,
        doc="Number of windows whose controller_mutation_rate a client may use at once.",
    )
    controller_quota_window_size_seconds: int = setting(default=1, at_least=1, doc="Length of each of these windows.")
    kbroker_max_quota_clients: int = setting(
        default=10_000,
        at_least=1,
        doc="Maximum number of users, client ids and addresses whose use of one quota is measured. The broker forgets "
        "the longest idle.",
    )
