"""HTTP pages about a running node: `/` for people, `/metrics` for Prometheus, `/health`, and `/state` as JSON.

The pages are off unless `kbroker.http.listener` is set; the broker imports this package only then. A page reads the
live objects at the time of the request, in short pieces, so that the broker's clients do not wait. Only values that
cannot be read later are counted as they occur: durations and errors of requests, and bytes received and sent.

    serving.py      the task that serves the pages
    http.py         HTTP over a listener of the environment, with bounds (A)
    gate.py         who may read the pages
    pages.py        maps paths to pages
    metrics.py      how a metric is declared; *_metrics.py declare them; exposition.py writes the page
    isr_changes.py  counts what metrics cannot read later
    health.py       whether the node is alive, and ready
    state.py        partitions, groups and connections, one by one
    state_page.py   the page at /, which is state.html; view.py and details.py make its data, sorting.py sorts them
    groups.py       the groups and their lag
    ports.py        the node, as the pages see it
"""
