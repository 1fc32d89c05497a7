# The image of the HTTP service for the models of a finished run or an export.
# Build it from the repository's root: docker build -f deploy/docker/serve.Dockerfile -t pfedseq-serve .
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml setup.py README.md LICENSE constraints.txt /source/
COPY src /source/src
# PyTorch's own index has a build without CUDA, a tenth of the size.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/pfedseq \
    && /opt/pfedseq/bin/pip install --no-cache-dir --constraint /source/constraints.txt \
       --extra-index-url ${TORCH_INDEX} '/source[serve]'

FROM python:3.11-slim
RUN useradd --uid 1000 --create-home pfedseq && mkdir --parents /state/flwr \
    && chown --recursive pfedseq /state
COPY --from=build /opt/pfedseq /opt/pfedseq
ENV PATH=/opt/pfedseq/bin:$PATH PYTHONUNBUFFERED=1 PFEDSEQ_CACHE=/state/cache HF_HOME=/state/hub
ENV PFEDSEQ_SERVE_RUN=/models PFEDSEQ_SERVE_HOST=0.0.0.0 PFEDSEQ_SERVE_PORT=8000
USER pfedseq
WORKDIR /state
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
# `docker kill --signal HUP NAME` reloads the models.
CMD ["pfedseq", "serve"]
