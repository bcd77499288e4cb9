# scanonce. "make help" lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO ?= go
BIN := bin/scanonce
FUZZTIME ?= 60s
TESTTIME ?= 12m
export CGO_ENABLED ?= 1

# What the binary says of itself. Outside a git checkout nothing of it is known.
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
BUILD_DATE := $(shell git log -1 --format=%cI 2>/dev/null || date -u +%Y-%m-%dT%H:%M:%SZ)
LDFLAGS := -X scanonce/internal/cli.version=$(VERSION) -X scanonce/internal/cli.commit=$(COMMIT) -X scanonce/internal/cli.buildDate=$(BUILD_DATE)

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r t d; do printf '  make %-16s %s\n' "$$t" "$$d"; done

.PHONY: build
build: ## Build bin/scanonce
	$(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/scanonce

.PHONY: run
run: build ## Run an agent in a temporary folder and simulate a counter; ONCE=1 stops after the summary
	@$(BIN) demo $(if $(filter 1,$(ONCE)),--once)

.PHONY: lint
lint: ## Check formatting and vet
	@unformatted=$$(gofmt -l .); \
	if [ -n "$$unformatted" ]; then printf 'not formatted, run gofmt -w on:\n%s\n' "$$unformatted"; exit 1; fi
	$(GO) vet ./...

.PHONY: test-deps
test-deps: ## Install what the tests run, Redis and PostgreSQL, if it is missing
	@.ci/test-deps

# One package at a time: the tests start servers and agents of their own, mind the time, and share the machine's
# terminal numbers.
.PHONY: test
test: test-deps lint ## Check, and run all tests with the race detector
	$(GO) test -race -p 1 -timeout $(TESTTIME) ./...

.PHONY: bench
bench: test-deps ## Measure the agent beside the baselines; BENCHFLAGS="-rounds 5 -rows F2,F3"
	$(GO) run ./internal/bench $(BENCHFLAGS)

.PHONY: fuzz
fuzz: ## Fuzz each target for FUZZTIME (default 60s)
	@grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u | while read -r dir; do \
		for target in $$($(GO) test -list '^Fuzz' "$$dir" | grep '^Fuzz'); do \
			echo "$$dir $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$dir" < /dev/null; \
		done; \
	done

.PHONY: check-generated
check-generated: build ## Check that the generated files are up to date
	@$(BIN) config reference | diff -u configs/reference.toml - \
		|| { echo 'configs/reference.toml is out of date: bin/scanonce config reference > configs/reference.toml'; exit 1; }

.PHONY: clean
clean: ## Remove what make built
	rm -rf bin
