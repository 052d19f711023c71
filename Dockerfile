# The image of a cluster's nodes: the versions of constraints-gpu.txt, the project, and a user without privileges.
#
#   docker build -t skillreason-cluster:0.1.0 .
#
# Linux x86_64 with NVIDIA GPUs. CUDA's libraries come with the Python packages, the driver (580 or newer) from the node.
# Not built yet: no machine with Docker was at hand.

FROM nvidia/cuda:13.0.2-base-ubuntu22.04 AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential python3-pip \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir uv==0.13.9
# the Python that the tests run with; Ubuntu 22.04 has an older one
ENV UV_PYTHON_INSTALL_DIR=/opt/python UV_NO_CACHE=1 UV_LINK_MODE=copy
RUN uv python install 3.11 && uv venv --python 3.11 --seed /opt/venv
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints-gpu.txt ./
# dependencies first, so that a change of the project's own code leaves this layer as it is; DeepSpeed's kernels are not compiled:
# its optimizer here is torch's
RUN DS_BUILD_OPS=0 uv pip install --python /opt/venv --constraint constraints-gpu.txt \
    --extra gpu --requirements pyproject.toml
COPY actors actors
COPY cluster cluster
COPY configs configs
COPY data_pipeline data_pipeline
COPY evaluation evaluation
COPY models models
COPY objectives objectives
COPY retrieval retrieval
COPY rewards rewards
COPY serving serving
COPY skillreason skillreason
COPY trainers trainers
RUN uv pip install --python /opt/venv --no-deps .

FROM nvidia/cuda:13.0.2-base-ubuntu22.04
# gcc for Triton's kernels; wget for the health probes of KubeRay; rsync for Ray's own autoscaler
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates gcc libc6-dev libgomp1 openssh-client rsync wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 --shell /bin/bash ray
COPY --from=build /opt/python /opt/python
COPY --from=build /opt/venv /opt/venv
# hadolint ignore=DL3064
ENV PATH=/opt/venv/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONUNBUFFERED=1 \
    RAY_AUTH_MODE=token \
    RAY_USAGE_STATS_ENABLED=0 \
    VLLM_NO_USAGE_STATS=1 \
    TOKENIZERS_PARALLELISM=false
USER 1000
WORKDIR /home/ray
CMD ["bash"]
