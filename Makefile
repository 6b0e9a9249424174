# demo: an unmodified Keras model, stock and fused.   test: lint and all tests but the slow ones.
# wheel: one wheel in dist/.   bench: the benchmarks.   lint: format and style.
# clean: removes whatever the others made, .venv included.
# Each does its own set-up, into .venv and .build (tools/make.py).
PYTHON ?= python3

.PHONY: help demo test wheel bench lint clean
help:
	@sed -n '1,3s/^# //p' Makefile
demo test wheel bench lint clean:
	@$(PYTHON) tools/make.py $@
