# syntax=docker/dockerfile:1
# A worker.  CUDA: --build-arg ACCELERATOR=cuda.  TorchScript and .pt2 models: --build-arg TORCH=1.
ARG PYTHON_IMAGE=python:3.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG ACCELERATOR=cpu
ARG TORCH=0
ARG TORCH_VERSION=2.13.0
ARG ONNXRUNTIME_GPU_VERSION=1.32.0
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# For the compiled pass of the metrics; the image that runs has no compiler.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/narrowcast
COPY docker/worker-requirements.txt /tmp/requirements.txt
RUN if [ "${ACCELERATOR}" = cuda ]; then \
        grep -v '^onnxruntime==' /tmp/requirements.txt > /tmp/chosen.txt \
        && /opt/narrowcast/bin/pip install "onnxruntime-gpu[cuda,cudnn]==${ONNXRUNTIME_GPU_VERSION}"; \
    else \
        cp /tmp/requirements.txt /tmp/chosen.txt; \
    fi \
    && /opt/narrowcast/bin/pip install --no-deps -r /tmp/chosen.txt \
    && if [ "${TORCH}" = 1 ]; then /opt/narrowcast/bin/pip install "torch==${TORCH_VERSION}"; fi
COPY pyproject.toml setup.py README.md LICENSE /src/
COPY converter /src/converter
COPY worker /src/worker
COPY api /src/api
RUN /opt/narrowcast/bin/pip install --no-deps /src

FROM ${PYTHON_IMAGE}
ARG ACCELERATOR=cpu
RUN groupadd --gid 10001 narrowcast \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin narrowcast \
    && install -d -o 10001 -g 10001 -m 0750 /data /work
COPY --from=build /opt/narrowcast /opt/narrowcast
ENV PATH=/opt/narrowcast/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    NARROWCAST_DATA_DIR=/data NARROWCAST_WORK_DIR=/work NARROWCAST_DEVICE=${ACCELERATOR}
USER 10001:10001
VOLUME ["/data", "/work"]
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s --retries=3 CMD ["python", "-m", "worker.alive"]
ENTRYPOINT ["narrowcast"]
CMD ["serve-worker"]
