# The image of the broker; see docs/image.md.
#
# BASE is any image with Python 3.11 or newer, its venv module, and bash. `docker/pin-base` pins it to a digest. With
# PIP_ARGUMENTS and a volume at /wheels it can be built without a network.
ARG BASE=docker.io/library/python:3.13-slim-bookworm@sha256:67a1e1f215ccda113cfc024e8639049257e88f273898f595b61476d128d387e8

FROM ${BASE} AS build
ARG PIP_ARGUMENTS=""
WORKDIR /source
COPY requirements/run.txt requirements/compile.txt requirements/hatch_build.py requirements/
# The hot modules are compiled, which takes a compiler for C and Python's headers.
RUN command -v gcc >/dev/null \
    || (apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null)
RUN python3 -m venv /opt/kbroker \
    && /opt/kbroker/bin/pip install --quiet --no-cache-dir ${PIP_ARGUMENTS} --require-hashes -r requirements/run.txt \
    && /opt/kbroker/bin/pip install --quiet --no-cache-dir ${PIP_ARGUMENTS} --require-hashes -r requirements/compile.txt
COPY pyproject.toml README.md LICENSE ./
COPY docs/kbroker.1 docs/
COPY wire wire
COPY kbroker kbroker
# Remove the build dependencies and pip, which the broker does not need at run time.
ARG OPTIMIZATION=3
RUN HATCH_BUILD_HOOKS_ENABLE=1 KBROKER_OPTIMIZATION=${OPTIMIZATION} /opt/kbroker/bin/pip install --quiet --no-deps --no-build-isolation --no-compile . \
    && /opt/kbroker/bin/pip uninstall --quiet --yes \
        hatchling editables packaging pathspec pluggy tomlkit trove-classifiers mypy librt ast-serialize \
        typing-extensions setuptools pip \
    && find /opt/kbroker -name tests -type d -prune -exec rm -r {} + \
    && find /opt/kbroker -name __pycache__ -type d -prune -exec rm -r {} + \
    && /opt/kbroker/bin/python -m compileall -q -j 0 /opt/kbroker/lib

FROM ${BASE}
LABEL org.opencontainers.image.title="kbroker" \
    org.opencontainers.image.description="A Kafka-wire-compatible broker without a JVM" \
    org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/kbroker /opt/kbroker
COPY docker/kafka /etc/kafka/docker
COPY docker/kafka /etc/confluent/docker
COPY docker/kafka_tools /opt/kafka/libs/kafka_tools
COPY docker/kafka-tool docker/link-tools docker/sbom /opt/kafka/bin/
# Kafka's tools, at the paths of both images; kbroker also for shells that set PATH themselves.
RUN /opt/kafka/bin/link-tools /opt/kafka/bin /bin && rm /opt/kafka/bin/link-tools \
    && ln -s /opt/kbroker/bin/kbroker /usr/local/bin/kbroker \
    && /opt/kbroker/bin/python -m compileall -q /opt/kafka/libs \
    && /opt/kbroker/bin/python /opt/kafka/bin/sbom > /opt/kbroker/sbom.cdx.json && rm /opt/kafka/bin/sbom
# Any user may run the broker (the data directory has the mode of /tmp); the default is appuser. Only root may change the
# files that the next start runs, whatever their modes were on the build machine. Testcontainers' module for Rust adds a
# start script to /opt/kafka, which has the mode of /tmp too.
RUN useradd --create-home --shell /bin/bash appuser \
    && mkdir -p /etc/kafka/secrets /var/lib/kafka/data /var/lib/kafka/logs /mnt/shared/config \
    && chown -R appuser:root /etc/kafka/secrets /var/lib/kafka /mnt/shared/config /home/appuser \
    && chmod -R ug+rwX /etc/kafka/secrets /var/lib/kafka /mnt/shared/config /home/appuser \
    && chmod -R go-w /etc/kafka/docker /etc/confluent /usr/local/bin /opt/kafka /opt/kbroker \
    && chmod go-w /etc/kafka \
    && chmod 1777 /var/lib/kafka/data /opt/kafka
ENV PATH=/opt/kbroker/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    XDG_DATA_HOME=/var/lib
USER appuser
WORKDIR /home/appuser
EXPOSE 9092
VOLUME ["/etc/kafka/secrets", "/var/lib/kafka/data", "/mnt/shared/config"]
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=20s --retries=3 CMD ["/etc/kafka/docker/health"]
CMD ["/etc/kafka/docker/run"]
