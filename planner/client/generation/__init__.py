"""A deployed language model in the place of the model itself: `generate` of transformers asks the daemons.

    with client.pipeline(deployment.id, outputs=["output[:, -1:]"]) as pipeline:
        deployed = PipelinedCausalLM(pipeline, model.config, model.generation_config)
        tokens = deployed.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=64, do_sample=True)

`PipelinedSeq2SeqLM` is the same for an encoder with a decoder.

Tokens are chosen here, by transformers: its warpers and processors of logits, stopping criteria and streamers all work,
and a seed gives the tokens that it gives with the model.

The map: `causal` and `seq2seq` in the place of models, over `language_model`, which they share, and the `input_names`
that graphs have, with their sizes; several sequences under way at once: `interleaved` calls of one thread, and `places`
for threads. Importing it loads no transformers before a model is named.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.client.generation.causal import PipelinedCausalLM
    from planner.client.generation.seq2seq import PipelinedSeq2SeqLM

__all__ = ["PipelinedCausalLM", "PipelinedSeq2SeqLM"]

_IMPORTED_WHEN_NAMED = {"PipelinedCausalLM": "causal", "PipelinedSeq2SeqLM": "seq2seq"}


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_WHEN_NAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_IMPORTED_WHEN_NAMED[name]}"), name)
