# The gateway in an image of its own. All that the first stage makes lies in /app; the second takes /app/venv of it.
# `python -m scripts.prove_dockerfile` runs these very steps in an empty folder where no Docker is at hand.

# The whole image has a C compiler; the slim one, of the same Python, has what the compiled code needs.
FROM python:3.11-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /app/source

# Packages before sources: a change to the gateway leaves these layers as they are.
COPY requirements.lock requirements-build.lock ./
RUN python -m venv /app/venv
RUN /app/venv/bin/python -m pip install --require-hashes -r requirements.lock
RUN python -m pip install --require-hashes -r requirements-build.lock

COPY pyproject.toml README.md LICENSE ./
COPY scripts/compile_hook.py scripts/compile_modules.py ./scripts/
COPY gateway ./gateway
# By the build backend itself: pip would compile twice, the first time to know the wheel's metadata.
RUN HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 python -m hatchling build --target wheel --directory /app/wheels
RUN /app/venv/bin/python -m pip install --no-deps --no-index --find-links /app/wheels tito-gateway


FROM python:3.11-slim-bookworm
ENV PATH=/app/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=build /app/venv /app/venv

# By number, so that Kubernetes can see that it is not root.
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM

# Alive, not ready: an orchestrator must not restart a gateway whose workers are away or that is draining.
HEALTHCHECK --interval=10s --timeout=3s --start-period=15s --retries=3 CMD ["python", "-c", \
  "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('DYN_HTTP_PORT') or 8000), timeout=2); c.request('GET', '/liveness'); sys.exit(c.getresponse().status != 200)"]

ENTRYPOINT ["tito-gateway"]
CMD ["serve"]
