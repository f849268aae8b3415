# syntax=docker/dockerfile:1
# The API and the sweeper: no torch, no onnx, no onnxruntime, no compiler, not root.
ARG PYTHON_IMAGE=python:3.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/narrowcast
COPY docker/api-requirements.txt /tmp/requirements.txt
RUN /opt/narrowcast/bin/pip install --no-deps -r /tmp/requirements.txt
COPY pyproject.toml setup.py README.md LICENSE /src/
COPY converter /src/converter
COPY worker /src/worker
COPY api /src/api
RUN /opt/narrowcast/bin/pip install --no-deps /src

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 narrowcast \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin narrowcast \
    && install -d -o 10001 -g 10001 -m 0750 /data
COPY --from=build /opt/narrowcast /opt/narrowcast
ENV PATH=/opt/narrowcast/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 NARROWCAST_DATA_DIR=/data
USER 10001:10001
VOLUME ["/data"]
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["narrowcast"]
CMD ["serve-api", "--host", "0.0.0.0", "--port", "8000"]
