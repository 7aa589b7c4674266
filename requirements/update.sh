#!/bin/sh
# Renew the locked requirements: needs uv. The files hold names, versions and hashes alone.
set -eu
cd "$(dirname "$0")/.."
lock() { out=$1; shift; uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links "$@" --output-file "$out"; }
lock requirements/run.txt pyproject.toml requirements/build.in
lock requirements/dev.txt pyproject.toml requirements/build.in requirements/dev.in
lock requirements/compile.txt requirements/compile.in --constraint requirements/dev.txt
# One environment with both: the same versions of what both have.
lock requirements/spark.txt pyproject.toml --extra spark requirements/build.in requirements/dev.in requirements/spark.in --constraint requirements/dev.txt
lock requirements/fuzz.txt requirements/fuzz.in --constraint requirements/dev.txt
lock requirements/streams.txt requirements/streams.in
lock requirements/foreign.txt pyproject.toml requirements/build.in requirements/foreign.in
lock requirements/release.txt requirements/release.in --constraint requirements/dev.txt
