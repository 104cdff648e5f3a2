# The words that people type. Each recipe is a script that can be read and run by itself.

.PHONY: help demo test test-long bench stack-up stack-down

help:
	@echo "make demo        build, start, send two requests, show the bill; Ctrl-C stops (ONCE=1: by itself)"
	@echo "make test        everything that must hold, as CI runs it"
	@echo "make test-long   the random tests with many seeds, for hours (MINUTES=…)"
	@echo "make bench       Weir beside a bare proxy on this machine: CPU, latency, throughput (QUICK=1: one minute; SLOW=1: slow readers;"
	@echo "                 STACK=1: every role apart on Kafka, a CQL server and Redis Cluster)"
	@echo "make stack-up    Kafka, a CQL server and Redis Cluster on this machine (BROKERS=3, REPLICAS=1); prints addresses"
	@echo "make stack-down  stops them (WIPE=1: deletes their data)"

demo:
	@deploy/dev/demo.sh

test:
	@deploy/dev/test.sh

test-long:
	@deploy/dev/test-long.sh

bench:
	@tests/bench/run.sh

stack-up:
	@deploy/dev/stack-up.sh

stack-down:
	@deploy/dev/stack-down.sh
