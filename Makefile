# `make run` and `make test` need nothing but Go: everything else they set up themselves (scripts/setup).

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --no-print-directory

BIN     := $(CURDIR)/.bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)

ARGS     ?=
PKG      ?= ./...
SOAK     ?= 10m
FUZZTIME ?= 30s

##@ Use it

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: setup-run build ## Start Pegel with a private Postgres and Redis, and print curl lines to try (ARGS=--fresh starts over)
	@exec dist/pegel dev $(ARGS)

.PHONY: build
build: ## Build the static binary dist/pegel
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o dist/pegel ./cmd/pegel

##@ Change it

.PHONY: setup
setup: ## Install what is missing on this machine: Postgres, Redis, PgBouncer, nginx, Chromium, promtool, curl, jq, a C compiler (root on Debian; else names them)
	@scripts/setup test

.PHONY: setup-run
setup-run:
	@scripts/setup run

.PHONY: test
test: setup c-compiler $(BIN)/gotestsum $(BIN)/caddy ## Run every test, with the race detector and in random order (PKG=./internal/... for some)
	@go build -race ./... # first, so that tests that watch the time do not share the machine with the compiler
	$(BIN)/gotestsum --format pkgname -- -race -shuffle=on -timeout 20m -skip '^TestSoak' $(PKG)

# Without one Go says, minutes later, only that cgo is off.
.PHONY: c-compiler
c-compiler: setup
	@command -v "$${CC:-gcc}" >/dev/null || { echo 'make test: no C compiler, which the race detector needs (Debian: gcc libc6-dev); make test-short does without' >&2; exit 1; }

.PHONY: test-short
test-short: setup $(BIN)/gotestsum $(BIN)/caddy ## Run the quick tests
	$(BIN)/gotestsum --format pkgname -- -short -timeout 5m -skip '^TestSoak' $(PKG)

.PHONY: soak
soak: setup fuzz ## Fuzz everything, then run the TestSoak tests one by one (SOAK=10m each; about 50 minutes)
	PEGEL_SOAK=$(SOAK) go test -count=1 -timeout 0 -p 1 -v -run '^TestSoak' $(PKG)

.PHONY: fuzz
fuzz: setup ## Run every fuzz test (FUZZTIME=30s each)
	@scripts/fuzz $(FUZZTIME)

.PHONY: bench
bench: setup ## Measure Pegel beside its peers, as one table (about 2 minutes; ARGS for the program's own flags)
	go -C bench run . $(ARGS)

.PHONY: lint
lint: $(BIN)/golangci-lint ## Lint, with the arrows between the packages, and vet the modules bench and tools
	$(BIN)/golangci-lint run --allow-parallel-runners ./...
	@if [ -f bench/go.mod ]; then echo 'vet bench'; go -C bench vet ./...; fi
	@go -C api/client/examples vet ./...
	@go -C tools list tool >/dev/null

.PHONY: fmt
fmt: $(BIN)/golangci-lint ## Format the code
	$(BIN)/golangci-lint fmt ./...

.PHONY: generate
generate: $(BIN)/oapi-codegen ## Regenerate the code that comes from api/openapi.yaml
	PATH="$(BIN):$$PATH" go generate ./...

.PHONY: generate-check
generate-check: ## Fail when generated code is out of date
	@scripts/generate-check

.PHONY: tidy-check
tidy-check: ## Fail when a go.mod or go.sum is not tidy
	go mod tidy -diff
	@if [ -f bench/go.mod ]; then go -C bench mod tidy -diff; fi
	go -C api/client/examples mod tidy -diff
	go -C tools mod tidy -diff
	go -C tools/caddy mod tidy -diff

.PHONY: migrate-new
migrate-new: ## Create the next migration (name=add_something)
	@scripts/migrate-new '$(name)'

.PHONY: clean
clean: ## Remove what was built; the state of `make run` in .dev stays
	rm -rf dist $(BIN)

# The tools are pinned in tools/go.mod, so that their dependencies never reach Pegel's. A changed pin rebuilds them.
$(BIN)/golangci-lint: tool = github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(BIN)/gotestsum: tool = gotest.tools/gotestsum
$(BIN)/oapi-codegen: tool = github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen
$(BIN)/%: tools/go.mod tools/go.sum
	@echo 'building $(@F) (once for each version; golangci-lint takes minutes)'
	@mkdir -p $(BIN)
	go -C tools build -buildvcs=false -o $@ $(tool)

# Caddy is a peer in the tests of the front doors.
$(BIN)/caddy: tools/caddy/go.mod tools/caddy/go.sum
	@echo 'building caddy (once for each version; about a minute)'
	@mkdir -p $(BIN)
	go -C tools/caddy build -buildvcs=false -o $@ github.com/caddyserver/caddy/v2/cmd/caddy
