"""Pages about a running node, by HTTP: `/metrics` for Prometheus, `/health`, and `/state` as JSON.

Off unless `kbroker.http.listener` is set, and imported only then: a broker without pages pays nothing for them. What is
shown is read from the live objects when somebody asks, in pieces short enough that no client of the broker waits for
it; only what cannot be read afterwards (how long requests took, which errors they got, how many bytes came and went) is
counted as it happens.

    http.py         HTTP over a listener of the environment, with bounds (A)
    pages.py        which path is what
    metrics.py      how a metric is declared; *_metrics.py declare them; exposition.py writes the page
    health.py       whether the node is alive, and ready
    state.py        partitions, groups and connections, one by one
    groups.py       the groups and how far they are behind
    ports.py        what the pages need of the node
    document.py     docs/metrics.md, from the declarations
"""
