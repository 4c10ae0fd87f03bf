# Build on the builder's own platform, for the target's: CGO is off, so Go cross-compiles.
FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src

COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download

COPY . .
ARG TARGETOS TARGETARCH
ARG VERSION=unknown
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /out/pegel ./cmd/pegel

# Nothing but the binary, certificates and time zones: no shell, no package manager.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/pegel /usr/local/bin/pegel

# A number, so that Kubernetes' runAsNonRoot can check it: distroless' "nonroot".
USER 65532:65532

# Inside a container loopback reaches nobody else. The admin listener stays on it until PEGEL_ADMIN_LISTEN says otherwise.
ENV PEGEL_LISTEN=:8080
EXPOSE 8080

# Fails while Pegel does not answer /healthz on its public listener; the image has no curl.
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 CMD ["/usr/local/bin/pegel", "healthcheck"]

ENTRYPOINT ["/usr/local/bin/pegel"]
CMD ["serve"]
