# "make help" lists the targets. "make build", "make demo" and the Go tests need only Go.
# Linters of Python and the site need Python and the network too.

GO      ?= go
BIN     ?= bin
# For a package. Its tests take seconds or minutes; interop takes most of an hour if the machine has
# twenty times as much to do as it can.
TIMEOUT ?= 80m
# The race detector needs a C compiler; Go knows whether there is one.
RACE    ?= $(if $(filter 1,$(shell $(GO) env CGO_ENABLED)),-race)
# How long each fuzz target runs, and which targets: a regular expression.
FUZZTIME ?= 10s
FUZZ     ?= .
# If DEEP is set, tests do all that they can: every step of a crash, many random cases.
DEEP ?=
export DEEP
# How long each soak test runs. SEED repeats a run. The soak of checkpoints in memory has ROUNDS at least.
SOAK ?= 5m
ROUNDS ?= 1000
# The PyTorch of "make test": TORCH names one, or it is one that is there. If NEED_TORCH is set
# and there is none, "make test" sets one up, and fails if a case with it cannot run.
NEED_TORCH ?=
# The frameworks with which "make test" trains, if its PyTorch is in a Debian system. "make interop" has all of them.
BESIDE = megatron deepspeed
# The browser of "make test": CHROMIUM names one, or it is one that is there. If NEED_BROWSER is
# set and there is none, "make test" installs Debian's, and fails if the tests cannot run.
NEED_BROWSER ?=
# If NEED_NODE is set, "make lint" fails if there is no Node to check the explorer's pages with.
NEED_NODE ?=
# The most bytes of the script of the explorer's pages, compressed.
WEBBYTES = 153600
# The packages whose tests know -update.
GOLDENS = $(shell grep -rl --include='*_test.go' '"update"' . | xargs -n1 dirname | sort -u)
# Gives a variable the value that it has when it is first used: lists of packages take a second each.
once = $(eval $(1) := $(2))$($(1))
# Each package, and what it and its tests import.
IMPORTS = $(GO) list -f '{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./...
MODULE  = github.com/cairn-ckpt/cairn
# The packages with large libraries, which take as long to compile as everything else.
SDKS    = github.com/(Azure|aws|fsouza|prometheus|versity)/|go.etcd.io/|golang.org/x/oauth2
CLOUD   = $(call once,CLOUD,$(shell $(IMPORTS) | grep -E ' ($(SDKS))' | cut -d' ' -f1))
LIGHT   = $(call once,LIGHT,$(filter-out $(CLOUD),$(shell $(GO) list ./...)))
# "make test" uses the race detector for packages whose code has goroutines or locks, and for the
# tests of the whole. It leaves out programs, whose libraries are tested with it, and large
# libraries. A value that is made once (sync.OnceValue) is no lock. "make race" uses it for all packages.
LOCKS   = ^\s+go |\.Go\(|sync\.(Cond|Map|Mutex|Once\b|Pool|RWMutex|WaitGroup)|"sync/|"golang.org/x/sync|/internal/work"
LOCKING = $(shell grep -rlE --include='*.go' --exclude='*_test.go' --exclude-dir=node_modules '$(LOCKS)' * | xargs -n1 dirname | sort -u)
USERS   = $(shell $(GO) list -f '{{.ImportPath}} {{join .Imports " "}}' ./cmd/... ./examples/... | grep ' $(MODULE)' | cut -d' ' -f1)
RACED   = $(call once,RACED,$(filter $(patsubst %/.,%,$(addprefix $(MODULE)/,$(LOCKING))) $(MODULE)/tests/%,$(filter-out $(USERS),$(LIGHT))))
PLAIN   = $(filter-out $(RACED),$(LIGHT) $(CLOUD))
# fake-gcs-server, for tests, brings gRPC. Without parts of it, less is compiled.
TAGS = disable_grpc_modules
# Nothing here needs tables for debuggers, which are a fifth of the time of the compiler. The flag is the
# same everywhere, so that nothing is compiled twice.
export GOFLAGS := $(GOFLAGS) -tags=$(TAGS) -gcflags=all=-dwarf=false
# The tools of "make release".
GORELEASER ?= v2.15.4
CYCLONEDX  ?= v1.9.0
# What "make bench" hands to cairn's io benchmark.
BENCHSIZE ?= 4GiB

.PHONY: all build wheels release demo test test-race test-plain test-torch test-web gotest vet race torch lint fmt vet-others staticcheck lint-python mod fuzz soak web web-modules web-programs web-check web-checked web-test web-bench web-shots browser interop gpu bench gobench generate changelog site clean help

all: build test lint ## build, test and lint

build: ## build the static binary bin/cairn
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/cairn ./cmd/cairn

wheels: ## build and check the wheels of the Python package for all systems, in bin/wheels
	GO=$(GO) PYTHON='$(PYTHON)' tools/wheels $(BIN)/wheels

# goreleaser makes the image with docker's engine, which not every machine has.
release: ## build all that a release publishes, in bin/release, and publish nothing
	GOBIN=$(abspath $(BIN)) GOFLAGS= $(GO) install github.com/goreleaser/goreleaser/v2@$(GORELEASER)
	GOBIN=$(abspath $(BIN)) GOFLAGS= $(GO) install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$(CYCLONEDX)
	PATH=$(abspath $(BIN)):$$PATH GOFLAGS= $(BIN)/goreleaser release --snapshot --clean \
		$$(docker info >/dev/null 2>&1 || { echo "there is no docker engine: the image is left out" >&2; echo --skip=docker; })

demo: ## save, reshard, crash and overwrite a small checkpoint, lose a host of a job with checkpoints in memory, and say how it went
	$(GO) run -tags nocloud ./cmd/cairn demo

# Parts that wait run beside parts that compute: the set-up of a PyTorch, and tests with servers or
# with processes of Python. The lists of all parts are printed at the end.
test: ## vet, build and run all tests, with the race detector where there is a C compiler; list the slowest and those that were skipped (DEEP=, TORCH=, NEED_TORCH=, CHROMIUM=, NEED_BROWSER=)
	@mkdir -p $(BIN) && rm -f $(BIN)/results
	@$(MAKE) --no-print-directory -j4 RESULTS='$(abspath $(BIN))/results' test-race test-plain test-torch test-web; code=$$?; \
		test ! -e $(BIN)/results || $(BIN)/gotest -from $(BIN)/results; exit $$code

# RESULTS is the file of all lists, if they are not printed.
RESULTS =
GOTEST  = GO=$(GO) $(BIN)/gotest $(if $(RESULTS),-into $(RESULTS))

# Two go commands at a time would each compile the packages that both need. So one after the other compiles for
# several parts of "make test": vet needs most packages, and the pages' programs the large libraries. The
# race detector has packages of its own.
gotest:
	@$(GO) build -o $(BIN)/ ./tools/gotest

vet: gotest
	$(GO) vet -tags=$(TAGS),nocloud $(LIGHT)

web-programs test-torch: $(if $(RESULTS),vet)

test-torch: torch gotest
	@test -e $(BIN)/torch || { cat $(BIN)/torch.log; exit 1; }
	@for t in $$(cat $(BIN)/torch); do interop/beside "$$t" $(BESIDE) || true; done
	CAIRN_INTEROP_TORCH="$$(cat $(BIN)/torch)" $(GOTEST) $(if $(NEED_TORCH),-all) -- \
		-run '^TestInterop$$' -vet=off -count=1 -tags=$(TAGS),interop -timeout $(TIMEOUT) ./interop

test-race: gotest
	$(GOTEST) -- $(RACE) -vet=off -tags=$(TAGS),nocloud -timeout $(TIMEOUT) $(RACED)

# Some of these packages wait for servers and other programs most of the time. "make lint" vets the
# packages with large libraries, because vet reads the libraries of their tests, too.
test-plain: vet web-programs
	@echo "python/tests run with $$($${PYTHON:-python3} --version 2>&1), $$(command -v $${PYTHON:-python3} || echo which is not here)"
	$(GOTEST) -- -p 4 -vet=off -timeout $(TIMEOUT) $(PLAIN)

# The line of the pages in the lists.
WEBTIME = '{"Packages": [{"Package": "web/tests", "Elapsed": %d}]}\n'

# The tests of the explorer's pages run if there are Node and a browser.
test-web: browser web-programs
	@test -e $(BIN)/browser || { cat $(BIN)/browser.log; exit 1; }
	@if [ ! -s $(BIN)/browser ]; then :; \
	elif $(if $(NEED_BROWSER),:,$(MAKE) --no-print-directory web-modules); then \
		begin=$$(date +%s); $(MAKE) --no-print-directory web-test RESULTS= CHROMIUM="$$(cat $(BIN)/browser)" \
		$(if $(RESULTS),&& printf $(WEBTIME) $$(($$(date +%s) - begin)) >>$(RESULTS)); \
	else echo "the tests of the explorer's pages are left out: npm could not install their packages"; fi

# Writes which browser there is to bin/browser: an empty file if there is none that is needed.
browser:
	@mkdir -p $(BIN)
	@{ CHROMIUM='$(CHROMIUM)' NEED='$(NEED_BROWSER)' tools/browser 2>&1 >$(BIN)/browser || rm -f $(BIN)/browser; } | tee $(BIN)/browser.log

race: gotest ## run the tests of all packages with the race detector
	$(GOTEST) -- -race -timeout $(TIMEOUT) ./...

# Writes which PyTorch there is to bin/torch. If that does not work, there is no such file.
torch:
	@mkdir -p $(BIN)
	@{ TORCH='$(TORCH)' SUITES='$(SUITES)' $(if $(NEED_TORCH),NEED=all,WAYS='python kept') interop/setup 2>&1 >$(BIN)/torch || rm -f $(BIN)/torch; } | tee $(BIN)/torch.log

lint: fmt vet-others staticcheck mod lint-python web-check ## check form: gofmt, types for other systems, staticcheck, modules, ruff, mypy, the explorer's pages (NEED_NODE=)

fmt:
	@files="$$(find . -name node_modules -prune -o -name '*.go' -exec $$($(GO) env GOROOT)/bin/gofmt -l -s {} +)"; if [ -n "$$files" ]; then echo "gofmt -s would change:"; echo "$$files"; exit 1; fi

# Only linux runs the tests here. Vet would compile everything for the other systems.
vet-others:
	$(GO) -C tools/lint build -o ../../$(BIN)/ ./typecheck
	GOOS=darwin  GOARCH=arm64 CGO_ENABLED=0 $(BIN)/typecheck -tags $(TAGS),nocloud $(LIGHT)
	GOOS=windows GOARCH=amd64 CGO_ENABLED=0 $(BIN)/typecheck -tags $(TAGS),nocloud $(LIGHT)
	$(GO) vet -tags purego ./internal/...
	$(GO) vet -tags interop ./interop
	$(GO) vet $(CLOUD) ./cmd/cairn

# Tests with servers are left out: the servers would take as long as everything else.
staticcheck:
	$(GO) -C tools/lint build -o ../../$(BIN)/ honnef.co/go/tools/cmd/staticcheck
	$(BIN)/staticcheck -tags $(TAGS),nocloud $(LIGHT)
	$(BIN)/staticcheck -tests=false $(CLOUD) ./cmd/cairn

# ruff and mypy in a virtual environment, which is made again if their versions change. mypy is
# the one of interop, which checks the same with the types of a PyTorch: here torch is not installed.
PYTHON_LINTERS = ruff==0.17.4 $(shell grep '^mypy==' interop/requirements.txt)

lint-python:
	@test "$$(cat $(BIN)/lint-python/versions 2>/dev/null)" = '$(PYTHON_LINTERS)' || { \
		rm -rf $(BIN)/lint-python && $${PYTHON:-python3} -m venv $(BIN)/lint-python && \
		$(BIN)/lint-python/bin/pip install --quiet --disable-pip-version-check $(PYTHON_LINTERS) && \
		echo '$(PYTHON_LINTERS)' >$(BIN)/lint-python/versions; }
	cd python && $(abspath $(BIN))/lint-python/bin/ruff check --quiet --no-cache --config pyproject.toml . ../interop/py
	cd python && $(abspath $(BIN))/lint-python/bin/mypy --config-file pyproject.toml --cache-dir $(abspath $(BIN))/lint-python/mypy

mod:
	$(GO) mod tidy -diff

fuzz: ## run every fuzz target for FUZZTIME (10s), or those that match FUZZ; warn of slow ones
	@tools/fuzz $(FUZZTIME) '$(FUZZ)'

soak: ## save, also to memory, and follow versions, while processes are killed, hosts lost and links cut, and clocks jump; hostile files, late requests, parts of runs, damaged records (SOAK=5m, SEED=, ROUNDS=1000)
	SOAK=$(SOAK) SEED=$(SEED) ROUNDS=$(ROUNDS) $(GO) test $(RACE) -count=1 -timeout 0 -run '^(TestSoak|TestFollowVersionsThatAreRepublished$$)' -v ./tests/...
	SOAK=$(SOAK) SEED=$(SEED) $(GO) test -p 1 -count=1 -timeout 0 -run '^(TestLinesProperty|TestAttacksAre(Bounded|Answered))$$' -v ./run ./convert ./web
	SOAK=$(SOAK) SEED=$(SEED) $(GO) test -count=1 -timeout 0 -run '^TestLate$$/^(S3|GCS|Azure)$$/^Random$$' -v ./blob/conformance
	DEEP=1 $(GO) test -count=1 -timeout 0 -run '^TestDamageIsNoticed$$' ./storage/formats

# TORCH and SUITES say which PyTorchs: see interop/setup.
# The packages of npm, if they are not those of package-lock.json.
web-modules:
	@cmp -s web/package-lock.json web/node_modules/.installed || { \
		cd web && npm ci --no-audit --no-fund --loglevel=error && cp package-lock.json node_modules/.installed; }

web: web-modules ## build the explorer's pages, which bin/cairn embeds, in web/dist
	cd web && npm run --silent build

# Checks the types of the pages, that web/dist is what the sources build, and the size of the script.
web-check:
	@if command -v node >/dev/null && command -v npm >/dev/null; then $(MAKE) --no-print-directory web-checked; \
	else echo "web-check needs Node and npm, which are not here$(if $(NEED_NODE),,: the explorer's pages are not checked)"; $(if $(NEED_NODE),exit 1,:); fi

web-checked: web-modules
	cd web && npm run --silent check && npm run --silent unit
	cd web && npm run --silent build -- --logLevel warn --emptyOutDir --outDir $(abspath $(BIN))/web-dist
	@diff -rq $(BIN)/web-dist web/dist || { echo "web/dist is not what the sources build: run 'make web' and commit it"; exit 1; }
	@n=$$(cat web/dist/*.js | gzip -9 -n | wc -c); echo "the script has $$n bytes, compressed"; \
		test $$n -le $(WEBBYTES) || { echo "it may have $(WEBBYTES)"; exit 1; }

# What the tests in a browser run: the program with its pages, and the maker of checkpoints.
web-programs:
	$(GO) build -o $(BIN)/web/ ./cmd/cairn ./web/tests/make

web-test: web-modules web-programs ## test the explorer's pages in a browser (CHROMIUM=, ARGS= of node --test)
	CHROMIUM='$(CHROMIUM)' node web/tests/main.mjs test $(abspath $(BIN))/web $(ARGS)

web-bench: web-modules web-programs ## print how long the explorer takes for large checkpoints, in a browser (CHROMIUM=)
	CHROMIUM='$(CHROMIUM)' node web/tests/main.mjs bench $(abspath $(BIN))/web

web-shots: web-modules web-programs ## take the pictures of the explorer in docs/images (CHROMIUM=)
	CHROMIUM='$(CHROMIUM)' node web/tests/main.mjs shots $(abspath $(BIN))/web docs/images

interop: build ## test against real PyTorchs, which are found or set up (TORCH=, SUITES=)
	CAIRN=$(abspath $(BIN))/cairn GO=$(GO) TORCH='$(TORCH)' SUITES='$(SUITES)' interop/run $(ARGS)

gpu: ## test the Python package on the GPU of this machine, if it has one (PYTHON=, CAIRN_BINARY=)
	GO=$(GO) PYTHON='$(PYTHON)' python/tests/gpu $(ARGS)

bench: build ## print the measures of docs/benchmarks.md (BENCHSIZE=4GiB)
	$(BIN)/cairn bench io --size $(BENCHSIZE) --ranks 1
	$(BIN)/cairn bench async --size $(BENCHSIZE)
	$(BIN)/cairn bench async --size $(BENCHSIZE) --process
	$(GO) test -run '^TestLoadReadsWhatItNeeds$$' -v .
	$(GO) test -run '^$$' -bench Global ./plan
	$(GO) test -run '^$$' -bench Index ./storage/native
	$(GO) test -run '^$$' -bench . ./storage/dcpfiles ./group/tcp ./group/tree ./platform ./platform/collective
	$(GO) test -run '^$$' -bench . ./cmd/cairn

gobench: ## run the Go benchmarks
	$(GO) test -run '^$$' -bench . -benchmem ./...

generate: ## rewrite goldens and quoted code (tests with an -update flag); look at the diff
	$(GO) test -count=1 $(GOLDENS) -update

changelog: ## make CHANGELOG.md of the entries of all releases in changelog/
	$(GO) test -count=1 ./changelog -update

$(BIN)/site-venv: docs/requirements.txt
	rm -rf $@ && $(or $(PYTHON),python3) -m venv $@ && $@/bin/pip install -q --disable-pip-version-check -r $< && touch $@

site: $(BIN)/site-venv ## build the documentation site in bin/site, and fail on a link that leads nowhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/site-venv/bin/mkdocs build --strict -d $(abspath $(BIN))/site

clean: ## remove what make built
	rm -rf $(BIN)

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/' | while IFS="$$(printf '\t')" read -r t d; do printf '  %-10s %s\n' "$$t" "$$d"; done
