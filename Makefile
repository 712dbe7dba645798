# make demo [PHOTOS=folder]   a virtual environment, the weights, and a search among real photographs to look at
# make test                   everything that CI tests
# make test-scale             Ray and Milvus for real, on this machine (ONLY=words: some of them; CROW_SCALE=1: the full counts)
# make lint / docs            ruff, mypy --strict, import-linter / the generated pages
# make torture [SECONDS=1200] [SEED=1] [ONLY=campaign] [PAGE=docs/reliability.md]   faults, bad files, load; the table goes into the page
# make audit                  known weaknesses of what is installed, and of our own code
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-scale lint docs weights torture audit clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: .venv/ready
	$(BIN)/crow weights vgg16
	$(BIN)/python -m crow.app.demo $(if $(PHOTOS),"$(PHOTOS)")

weights: .venv/ready
	-$(BIN)/crow weights vgg16

test: .venv/ready weights
	$(BIN)/python -m pytest

.venv/scale-ready: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,scale,scale-test]"
	touch $@

test-scale: .venv/scale-ready
	$(BIN)/python -m pytest tests/scale $(if $(ONLY),-k "$(ONLY)")

lint: .venv/ready
	$(BIN)/ruff check src tests examples
	$(BIN)/ruff format --check src tests examples
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/ready
	$(BIN)/python -m crow.app.manual docs/cli.md
	PYTHONPATH=tests $(BIN)/python -m torture.supply

torture: .venv/ready weights
	PYTHONPATH=tests $(BIN)/python -m torture --seconds $(or $(SECONDS),1200) --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY)) $(if $(PAGE),--write $(PAGE))

audit: .venv/ready
	$(BIN)/pip-audit --skip-editable
	$(BIN)/bandit -q -r src -c pyproject.toml

clean:
	rm -rf .venv demo
