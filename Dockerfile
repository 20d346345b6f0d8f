# The demo in a container:  docker build -t sparklog . && docker run --rm sparklog
# A command instead of it:  docker run --rm -v /data/log:/log sparklog sparklog topics list --root /log
# tests/test_docker.py reads this file.

FROM python:3.12.12-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY sparklog sparklog
COPY pyspark_sparklog pyspark_sparklog
COPY conf conf
COPY notebooks notebooks
COPY examples/data/kafka-log-dir examples/data/kafka-log-dir
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
RUN pip install --no-cache-dir --target /packages "$(echo /wheels/sparklog-*.whl)[spark]"

FROM python:3.12.12-slim-bookworm
# Spark starts with java, and its scripts look for processes with ps.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /packages /packages
ENV PYTHONPATH=/packages \
    PATH=/packages/bin:$PATH \
    PYTHONUNBUFFERED=1
RUN useradd --create-home --uid 10001 sparklog
WORKDIR /home/sparklog/demo
COPY --chown=sparklog examples examples
RUN chown sparklog .
USER sparklog
# The kernels are compiled into the user's cache here, so that no query waits for a compiler.
RUN python -m sparklog.format.kernels.warm
CMD ["python", "examples/demo.py"]
