# scanonce. "make help" lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO ?= go
BIN := bin/scanonce
FUZZTIME ?= 60s
TESTTIME ?= 25m
FAULTTIME ?= 15m
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
	$(GO) vet -tags usbrig ./internal/rig/guest

.PHONY: test-deps
test-deps: ## Install what the tests run, servers and strace, if it is missing
	@.ci/test-deps

# Nothing from the cache: it does not see the program that the tests build and run. Packages that share the machine's
# terminal numbers, or mind the time, run one at a time; the others, which wait for servers of their own, by two.
# What tries a share of its cases with the race detector, which slows it down many times, tries all without it.
WHOLE := TestBytesWrittenPerScan|TestCentralSameBacklog|TestCrashPoints|TestDamage|TestDamagedJournal|TestFleetReturns|TestJournalKill|TestKill|TestPends
ALONE := ./cmd/scanonce ./device ./internal/agent ./internal/bench ./internal/cli ./internal/sim/... ./internal/testenv ./spool ./window
.PHONY: test
test: test-deps lint ## Check, and run all tests with the race detector
	@failed=0; \
	$(GO) test -race -count=1 -p 2 -timeout $(TESTTIME) $$(comm -23 <($(GO) list ./... | sort) <($(GO) list $(ALONE) | sort)) || failed=1; \
	$(GO) test -race -count=1 -p 1 -timeout $(TESTTIME) $(ALONE) || failed=1; \
	$(GO) test -count=1 -p 1 -timeout $(TESTTIME) -run '^($(WHOLE))$$' ./spool ./sync/forward ./cmd/scanonce || failed=1; \
	exit $$failed

# Without the race detector: its times go into the documentation.
.PHONY: test-faults
test-faults: test-deps ## Break disks, stores, lines and agents under load for FAULTTIME (default 15m)
	@mkdir -p bin
	$(GO) test ./cmd/scanonce -run '^TestFaults$$' -count 1 -v -timeout 0 -args -faulttime $(FAULTTIME) -faultresults $(CURDIR)/bin/faults.jsonl

.PHONY: test-usb
test-usb: ## Run the tests with real USB scanners in a virtual machine; its logs are in bin/usb
	@.ci/usb-rig

.PHONY: test-usb-quick
test-usb-quick: ## A few of them, in one boot
	@.ci/usb-rig -quick

.PHONY: loss-table
loss-table: ## Write the results of the last make test-faults into README.md and docs/RELIABILITY.md
	$(GO) run ./internal/faults/losstable -from bin/faults.jsonl

.PHONY: sim
sim: ## Play agents in simulated worlds: SEED=1 N=20000; N=1 tells what happens in one
	SEED=$(or $(SEED),1) N=$(or $(N),20000) $(GO) test -count=1 -timeout 4h -v -run '^TestSeeds$$' ./internal/sim/world

.PHONY: sim-mutants
sim-mutants: ## Check that the simulation finds each mistake of a list
	MUTANTS=all $(GO) test -count=1 -timeout 2h -v -run '^TestMutants$$' ./internal/sim/world

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
	@$(BIN) udev --known | diff -u configs/68-scanonce.rules - \
		|| { echo 'configs/68-scanonce.rules is out of date: bin/scanonce udev --known > configs/68-scanonce.rules'; exit 1; }

.PHONY: clean
clean: ## Remove what make built
	rm -rf bin
