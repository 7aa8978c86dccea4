"""`make demo`: a pretrained encoder, cut over two CPU daemons of unequal memory, gives the unsplit model's answer.

Starts a planner and two daemons as processes of this machine, exports the encoder, plans, deploys, embeds, and stops
them all.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console

from examples.sentence_encoder import build, load_tokenizer, tokenize
from planner.cli.tables import plan_table
from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.plan.options import BalancedMode, PlanOptions

# Neither holds the encoder (87 MiB of weights): one must take the word embeddings (45 MiB), the other the rest.
DAEMON_MEMORY_BYTES = (72 * 2**20, 80 * 2**20)
# Sums depend on how many threads share them: as many here as in the daemons.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
BATCH_SIZES = (1, 7, 2, 12, 5)
QUERY = "Which sentence is about a model that is too large for its accelerator?"


def batches(sentences: Sequence[str]) -> Iterator[list[str]]:
    """The sentences in groups of changing size."""
    remaining = list(sentences)
    for size in itertools.cycle(BATCH_SIZES):
        if not remaining:
            return
        yield remaining[:size]
        del remaining[:size]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--query", default=QUERY, help="find the sentence nearest to this one")
    query = parser.parse_args().query
    console = Console()
    torch.set_num_threads(1)

    sentences = (Path(__file__).parent / "sentences.txt").read_text().splitlines()
    tokenizer = load_tokenizer()
    module, args, kwargs, dynamic_shapes = build()
    exported = export(module, args, kwargs, dynamic_shapes=dynamic_shapes, name="minilm-l6")
    console.print(f"exported minilm-l6: {len(exported.graph.nodes)} nodes, {len(exported.graph.states)} tensors")

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(data_dir=Path(folder), memory_bytes=DAEMON_MEMORY_BYTES, environment=ONE_THREAD) as cluster,
        PlannerClient(cluster.planner_address) as client,
    ):
        graph = client.submit(exported)
        plan = client.create_plan(graph.id, PlanOptions(mode=BalancedMode()))
        console.print(plan_table(plan))
        deployment = client.deploy(plan.id)
        console.print(f"deployed {deployment.id}: {len(plan.stages)} stages, {deployment.state.lower()}")

        inputs = [tokenize(tokenizer, group) for group in (*batches(sentences), [query])]
        started = time.perf_counter()
        with client.pipeline(deployment.id) as pipeline:
            split = list(pipeline.run(inputs))
        seconds = time.perf_counter() - started
        client.stop(deployment.id)

    with torch.no_grad():
        whole = [module(**batch) for batch in inputs]
    equal = all(torch.equal(ours, theirs) for ours, theirs in zip(split, whole, strict=True))
    vectors, query_vector = torch.cat(split[:-1]), split[-1][0]
    scores = vectors @ query_vector
    nearest = int(scores.argmax())

    console.print(f"embedded {len(sentences)} sentences in {len(inputs) - 1} batches of 1 to 12 in {seconds:.2f} s")
    console.print(f"query:   {query}")
    console.print(f"nearest: {sentences[nearest]}  (cosine {float(scores[nearest]):.3f})")
    console.print(f"bitwise equal to the unsplit model: {'yes' if equal else 'NO'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
