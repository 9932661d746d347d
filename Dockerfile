# One file, two images: `service` (gateway and registry) and `demo` (the same, with what the example tools need).
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
RUN python3 -m venv /opt/venv
COPY requirements.txt /src/
RUN /opt/venv/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r /src/requirements.txt
COPY pyproject.toml README.md LICENSE /src/
COPY proto /src/proto
COPY gateway /src/gateway
COPY registry_service /src/registry_service
COPY naru_cli /src/naru_cli
COPY ops /src/ops
COPY examples /src/examples
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation /src

FROM build AS build-demo
COPY requirements-demo.txt /src/
RUN /opt/venv/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r /src/requirements-demo.txt

FROM ${BASE_IMAGE} AS base
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Volumes take the owner of the folder that they are mounted on.
RUN mkdir -p /run/naru/database /run/naru/registry /run/naru/gateway /run/naru/admin /run/naru/demo && chown -R 10001:10001 /run/naru
WORKDIR /run/naru
USER 10001:10001

FROM base AS demo
COPY --from=build-demo /opt/venv /opt/venv

FROM base AS service
COPY --from=build /opt/venv /opt/venv
