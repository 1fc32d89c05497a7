# The image of one site of a federation: it answers messages and runs no submitted app.
# Build it from the repository's root: docker build -f deploy/docker/site.Dockerfile -t pfedseq-site .
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml setup.py README.md LICENSE constraints.txt /source/
COPY src /source/src
# PyTorch's own index has a build without CUDA, a tenth of the size.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/pfedseq \
    && /opt/pfedseq/bin/pip install --no-cache-dir --constraint /source/constraints.txt \
       --extra-index-url ${TORCH_INDEX} '/source[flower]'

FROM python:3.11-slim
RUN useradd --uid 1000 --create-home pfedseq && mkdir --parents /state/flwr \
    && chown --recursive pfedseq /state
COPY --from=build /opt/pfedseq /opt/pfedseq
ENV PATH=/opt/pfedseq/bin:$PATH PYTHONUNBUFFERED=1 PFEDSEQ_CACHE=/state/cache HF_HOME=/state/hub
ENV FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME=/state/flwr
ENV FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
USER pfedseq
WORKDIR /state
VOLUME /state
# Add --superlink HOST:PORT and --name NAME.
ENTRYPOINT ["pfedseq", "flower", "site", "--root-certificates", "/keys/ca.crt", "--key", "/keys/site.key", "--data", "/data", "--state", "/state/site"]
