# An image in which graphkit is installed from a wheel, without a compiler. docs/install.md shows how to use it.
FROM python:3.12-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ libgomp1
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
# oneDNN needs OpenMP.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
ARG EXTRAS=images,tables,text,serve
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/*.whl)[$EXTRAS]"
RUN useradd --create-home graphkit
USER graphkit
WORKDIR /home/graphkit
ENTRYPOINT ["graphkit"]
CMD ["--help"]
