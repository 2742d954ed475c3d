# The daemon, and what `affinityd init` brings to a pod. scripts/image builds it.

# Debian 12, Ubuntu 24.04, or newer, with python3, its venv module, and taskset.
# By its digest: a tag may name another image tomorrow.
ARG BASE_IMAGE=python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

# Other projects' packages, as locked by scripts/lock. This layer changes only with the lock, so an upgrade
# transfers only the last layer to a node. Only wheels: a source package would run its own build.
FROM ${BASE_IMAGE} AS dependencies
# How pip reaches another index than PyPI; nothing of these enters the image.
ARG PIP_INDEX_URL
ARG PIP_CERT
WORKDIR /src
COPY deploy/image ./
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/affinityd \
    && /opt/pip/bin/pip install --no-cache-dir --only-binary :all: --require-hashes -r build.txt \
    && /opt/pip/bin/pip --python /opt/affinityd/bin/python install --no-cache-dir --no-compile \
        --only-binary :all: --require-hashes -r requirements.txt \
    # Bytecode that is valid whatever its sources' times are: a read-only root cannot store newer bytecode.
    && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/affinityd

FROM dependencies AS package
COPY pyproject.toml README.md LICENSE ./
COPY bin bin
COPY slurm/pinning.sh slurm/
COPY affinityd affinityd
RUN /opt/pip/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel . \
    && /opt/pip/bin/pip --python /opt/affinityd/bin/python install --no-cache-dir --no-deps \
        --no-compile --no-index --root /package /wheel/*.whl \
    && python3 -m compileall -q -s /package --invalidation-mode unchecked-hash /package

FROM ${BASE_IMAGE}
# The base image's pip is removed, and what would bring it back. The modules of python:3.12-slim come without
# bytecode.
RUN if python3 -c 'import pip' 2>/dev/null; then python3 -m pip uninstall --yes pip setuptools wheel; fi \
    && stdlib=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') \
    && rm -rf "$stdlib/ensurepip" /usr/share/python-wheels \
    && install -d -o 65532 -g 65532 /run/affinityd \
    && python3 -m compileall -q -x '/tests?/' --invalidation-mode unchecked-hash "$stdlib"
COPY --from=dependencies /opt/affinityd /opt/affinityd
COPY --from=package /package /

ARG BASE_IMAGE
ARG VERSION
LABEL org.opencontainers.image.title="affinityd" \
      org.opencontainers.image.description="Knows the machine and says on which CPUs, and which memory, each GPU rank belongs." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
# The socket's folder for a daemon that does not run as root.
ENV XDG_RUNTIME_DIR=/run/affinityd \
    PATH=/opt/affinityd/bin:$PATH
EXPOSE 9465 9466
USER 65532:65532
ENTRYPOINT ["affinityd"]
CMD ["serve"]
