"""`generate` of transformers over daemons: it gives the tokens that it gives of the model, and streams them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from planner.client import CacheSize, ExportedCheckpoint, ExportedModel, PlannerClient, export, export_checkpoint
from planner.client.batches import Batch
from planner.client.pipeline import Pipeline
from planner.client.records import RecoveryPolicy
from planner.errors import InvalidArgument, MicrobatchFailed
from planner.plan.options import BalancedMode, PlanOptions
from tests.models.architectures import CAUSAL, Architecture, find_architecture
from tests.nightly import nightly
from tests.waiting import WAIT_SECONDS
from tests.worker_processes import worker_at

pytestmark = [pytest.mark.services, pytest.mark.slow]

LENGTH = 32
LAST_LOGITS = "output[:, -1:]"
PROMPT = torch.tensor([[5, 9, 33, 12, 60, 7, 41]])
OTHER = torch.tensor([[8, 21]])
PADDED = {
    "input_ids": torch.tensor([[0, 0, 5, 9], [3, 4, 8, 21]]),
    "attention_mask": torch.ones(2, 4, dtype=torch.int64),
}
PADDED["attention_mask"][0, :2] = 0


@pytest.fixture
def model() -> Any:
    return find_architecture("causal/llama").module()


@contextmanager
def deployed_as(
    client: PlannerClient, exported: ExportedModel | ExportedCheckpoint, *, outputs: tuple[str, ...]
) -> Iterator[tuple[str, Pipeline]]:
    """In two stages."""
    plan = client.create_plan(client.submit(exported).id, PlanOptions(mode=BalancedMode(num_stages=2)))
    deployment = client.deploy(plan.id, recovery=RecoveryPolicy.RESTART)
    try:
        with client.pipeline(deployment.id, outputs=outputs, deadline_seconds=WAIT_SECONDS) as pipeline:
            yield deployment.id, pipeline
    finally:
        client.stop(deployment.id)


def kill_second_stage(client: PlannerClient, deployment_id: str) -> None:
    place = client.get_deployment(deployment_id).stages[1]
    os.kill(worker_at(place.daemon_address, deployment_id), signal.SIGKILL)


@contextmanager
def with_cache(client: PlannerClient, model: Any, *, outputs: str = LAST_LOGITS) -> Iterator[tuple[str, Pipeline]]:
    from planner.client import CachedModel

    cached = CachedModel.of(model, CacheSize(length=LENGTH))
    inputs, shapes = cached.example()
    exported = export(cached.module, (), inputs, dynamic_shapes=shapes)
    with deployed_as(client, exported, outputs=(outputs,)) as deployed:
        yield deployed


@contextmanager
def without_cache(
    client: PlannerClient, model: Any, names: tuple[str, ...], *, outputs: tuple[str, ...] = ()
) -> Iterator[Pipeline]:
    inputs = {**PADDED, "position_ids": PADDED["attention_mask"].cumsum(1)}
    batch, sequence = torch.export.Dim("batch", min=2, max=8), torch.export.Dim("sequence", min=2, max=LENGTH)
    model.config.use_cache = False
    exported = export(
        model,
        (),
        {name: inputs[name] for name in names},
        dynamic_shapes={name: {0: batch, 1: sequence} for name in names},
    )
    with deployed_as(client, exported, outputs=outputs) as (_, pipeline):
        yield pipeline


def sampled(model: Any, prompt: torch.Tensor, num_tokens: int, **options: Any) -> Any:
    torch.manual_seed(7)
    options = {"do_sample": True, "temperature": 0.8, "top_k": 20, "eos_token_id": None, **options}
    return model.generate(prompt, max_new_tokens=num_tokens, **options)


def test_a_cache_over_daemons_gives_the_tokens_of_the_model(
    client: PlannerClient, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import DynamicCache

    from planner.client.generation import PipelinedCausalLM

    expected = [sampled(model, prompt, 12) for prompt in (PROMPT, OTHER)]
    begun = sampled(model, OTHER, 3)
    further = sampled(model, begun, 2)
    last = sampled(model, further, 2)
    with with_cache(client, model) as (_, pipeline):
        deployed = PipelinedCausalLM(pipeline, model.config, model.generation_config)
        for prompt, tokens in zip((PROMPT, OTHER), expected, strict=True):
            assert torch.equal(sampled(deployed, prompt, 12), tokens)
        assert torch.equal(sampled(deployed, PROMPT, 12, prefill_chunk_size=3), expected[0])

        sent = list[int]()

        run = pipeline.run

        def counted(batches: list[Batch], **options: Any) -> Any:
            sent.extend(batch.kwargs["input_ids"].shape[1] for batch in batches)
            return run(batches, **options)

        monkeypatch.setattr(pipeline, "run", counted)
        first = sampled(deployed, OTHER, 3, return_dict_in_generate=True)
        assert torch.equal(first.sequences, begun)
        assert torch.equal(sampled(deployed, PROMPT, 1), expected[0][:, : PROMPT.shape[1] + 1])
        # The buffers are of the other sequence: all of the first one is sent again, and then what is new.
        going_on = {"past_key_values": first.past_key_values, "return_dict_in_generate": True}
        second = sampled(deployed, first.sequences, 2, **going_on)
        assert torch.equal(second.sequences, further)
        assert torch.equal(sampled(deployed, second.sequences, 2, **going_on).sequences, last)
        assert sent == [2, 1, 1, 7, 5, 1, 1, 1]
        monkeypatch.undo()

        with pytest.raises(InvalidArgument, match="attention_mask: it hides some of the prompt"):
            deployed.generate(PROMPT, attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1, 1]]), max_new_tokens=1)
        with pytest.raises(InvalidArgument, match="num_beams is 2: beams move"):
            deployed.generate(PROMPT, num_beams=2, max_new_tokens=1)
        with pytest.raises(InvalidArgument, match="assisted generation"):
            deployed.generate(PROMPT, prompt_lookup_num_tokens=2, max_new_tokens=1)
        with pytest.raises(InvalidArgument, match="output_hidden_states"):
            deployed.generate(PROMPT, output_hidden_states=True, max_new_tokens=1)
        with pytest.raises(InvalidArgument, match="inputs_embeds: a deployment is given token ids"):
            deployed.generate(inputs_embeds=torch.zeros(1, 2, model.config.hidden_size), max_new_tokens=1)
        with pytest.raises(InvalidArgument, match=r"2 sequences side by side, .* for 1: .*batch_size=2\)"):
            sampled(deployed, PROMPT, 1, num_return_sequences=2)
        with pytest.raises(InvalidArgument, match="past_key_values: a DynamicCache"):
            deployed.generate(PROMPT, past_key_values=DynamicCache(), max_new_tokens=1)
        with pytest.raises(MicrobatchFailed) as failed:
            deployed.generate(PROMPT, max_new_tokens=LENGTH, eos_token_id=None)
        assert failed.value.__notes__ == ["The sequence is of 33 tokens; a cache holds as many as it was exported for."]


@pytest.mark.parametrize("name", ["causal/gpt2", *nightly(["causal/llama", "causal/bloom", "causal/opt"])])
def test_padded_prompts_go_on_from_a_cache(client: PlannerClient, name: str) -> None:
    """By beams too; and a sequence whose cache was written over is sent again with its padding."""
    from planner.client import CachedModel
    from planner.client.generation import PipelinedCausalLM

    model: Any = find_architecture(name).module()
    settled = {"max_new_tokens": 6, "eos_token_id": None, "pad_token_id": 0}
    one = {key: tensor[:1] for key, tensor in PADDED.items()}

    def generated(generating: Any, **options: Any) -> Any:
        torch.manual_seed(7)
        return generating.generate(**{**PADDED, **settled, **options})

    asked = [{}, {"do_sample": True}, {**one, "num_beams": 2}]
    expected = [generated(model, **options) for options in asked]
    begun = generated(model, max_new_tokens=3)
    cached = CachedModel.of(model, CacheSize(length=LENGTH, batch_size=2, has_beams=True, has_padding=True))
    inputs, shapes = cached.example()
    exported = export(cached.module, (), inputs, dynamic_shapes=shapes)
    with deployed_as(client, exported, outputs=(LAST_LOGITS,)) as (_, pipeline):
        deployed = PipelinedCausalLM(pipeline, model.config, model.generation_config)
        for options, tokens in zip(asked, expected, strict=True):
            assert torch.equal(generated(deployed, **options), tokens)
        first = generated(deployed, max_new_tokens=3, return_dict_in_generate=True)
        assert torch.equal(first.sequences, begun)
        generated(deployed, input_ids=PADDED["input_ids"].flip(0), attention_mask=PADDED["attention_mask"].flip(0))
        mask = torch.nn.functional.pad(PADDED["attention_mask"], (0, 3), value=1)
        going_on = {"input_ids": begun, "attention_mask": mask, "max_new_tokens": 3}
        assert torch.equal(generated(deployed, **going_on, past_key_values=first.past_key_values), expected[0])
        whole = torch.tensor([[5, 9], [8, 21]])
        assert torch.equal(
            deployed.generate(whole, **settled), model.generate(whole, attention_mask=torch.ones(2, 2), **settled)
        )


def test_a_checkpoint_generates_without_being_loaded(client: PlannerClient, tmp_path: Path) -> None:
    """Two sequences side by side of a mixture of experts, whose config asks for kernels that nobody here has; then two
    beams of one, which go on from one another."""
    from planner.client.generation import PipelinedCausalLM

    model: Any = Architecture(model_type="mixtral", kind=CAUSAL, sizes={"head_dim": 8}).module()
    model.save_pretrained(tmp_path)
    prompts = torch.cat([PROMPT, PROMPT.flip(1)])
    exported = export_checkpoint(tmp_path, cache=CacheSize(length=LENGTH, batch_size=2, has_beams=True))
    with deployed_as(client, exported, outputs=(LAST_LOGITS,)) as (_, pipeline):
        deployed = PipelinedCausalLM(pipeline, model.config)
        assert torch.equal(sampled(deployed, prompts, 8), sampled(model, prompts, 8))
        beams = {"num_beams": 2, "num_return_sequences": 2, "length_penalty": 2.0}
        assert torch.equal(sampled(deployed, PROMPT, 8, **beams), sampled(model, PROMPT, 8, **beams))

        with torch.no_grad():
            going_on = model(torch.cat([prompts[[0, 0]], OTHER.T], dim=1), use_cache=False).logits[:, -1:]
        for is_written_over in (False, True):
            sequence = deployed(input_ids=prompts).past_key_values
            # Twice, before anything is sent.
            sequence.reorder_cache(torch.tensor([1, 0]))
            sequence.reorder_cache(torch.tensor([1, 1]))
            if is_written_over:
                deployed(input_ids=prompts.flip(0))
            torch.testing.assert_close(deployed(input_ids=OTHER.T, past_key_values=sequence).logits, going_on)


def test_several_sequences_at_once_each_have_a_slot(client: PlannerClient, model: Any, tmp_path: Path) -> None:
    """Five prompts in three slots, by one call and by threads, and a worker killed in the middle of them."""
    from planner.client.generation import PipelinedCausalLM

    model.save_pretrained(tmp_path)
    prompts = [PROMPT[:, :length] for length in (7, 2, 5, 3, 6)]
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    expected = [model.generate(prompt, **options) for prompt in prompts]
    exported = export_checkpoint(tmp_path, cache=CacheSize(length=LENGTH, num_slots=3))
    with deployed_as(client, exported, outputs=(LAST_LOGITS,)) as (deployment_id, pipeline):
        deployed = PipelinedCausalLM(pipeline, model.config)

        def generated(**others: Any) -> list[torch.Tensor]:
            torch.manual_seed(7)
            tokens: list[torch.Tensor] = deployed.generate_each(prompts, **{**options, **others})
            return tokens

        assert all(map(torch.equal, generated(), expected))
        assert all(map(torch.equal, generated(do_sample=True), generated(do_sample=True)))
        assert torch.equal(deployed.generate(PROMPT, **options), expected[0])
        with pytest.raises(InvalidArgument, match="needs at least 1 and at most 32"):
            deployed.generate_each([PROMPT, torch.zeros(1, 33, dtype=torch.int64), PROMPT], **options)

        asked = count()

        def kills_once(ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
            if next(asked) == 10:
                kill_second_stage(client, deployment_id)
            return torch.zeros(ids.shape[0], dtype=torch.bool)

        assert all(map(torch.equal, generated(stopping_criteria=[kills_once]), expected))
        assert client.get_deployment(deployment_id).generation > 1

        asked, generation = count(), client.get_deployment(deployment_id).generation
        with ThreadPoolExecutor(len(prompts)) as threads:
            calls = [
                threads.submit(deployed.generate, prompt, **options, stopping_criteria=[kills_once])
                for prompt in prompts
            ]
            assert all(map(torch.equal, [call.result(WAIT_SECONDS) for call in calls], expected))
        assert client.get_deployment(deployment_id).generation > generation


def test_a_cache_that_is_lost_is_computed_again(client: PlannerClient, model: Any) -> None:
    from planner.client.generation import PipelinedCausalLM

    expected = sampled(model, PROMPT, 12)
    with with_cache(client, model) as (deployment_id, pipeline):

        class Killer:
            """Puts an end to a worker behind the fourth token."""

            put_tokens = 0

            def put(self, tokens: torch.Tensor) -> None:
                self.put_tokens += 1
                if self.put_tokens == 5:
                    kill_second_stage(client, deployment_id)

            def end(self) -> None: ...

        deployed = PipelinedCausalLM(pipeline, model.config, model.generation_config)
        assert torch.equal(sampled(deployed, PROMPT, 12, streamer=Killer()), expected)
        assert client.get_deployment(deployment_id).generation > 1


def test_without_a_cache_padded_prompts_and_beams_are_those_of_the_model(client: PlannerClient, model: Any) -> None:
    from planner.client.generation import PipelinedCausalLM

    options = [{"do_sample": False}, {"do_sample": True}, {"num_beams": 3}]
    settled = {**PADDED, "max_new_tokens": 6, "eos_token_id": None, "pad_token_id": 0}

    def generated(generating: Any, **option: Any) -> torch.Tensor:
        torch.manual_seed(7)
        tokens: torch.Tensor = generating.generate(**settled, **option)
        return tokens

    expected = [generated(model, **option) for option in options]
    generation = model.generation_config
    with without_cache(
        client, model, ("input_ids", "attention_mask", "position_ids"), outputs=("logits[:, -1]",)
    ) as it:
        deployed = PipelinedCausalLM(it, model.config, generation)
        for option, tokens in zip(options, expected, strict=True):
            assert torch.equal(generated(deployed, **option), tokens)
    with without_cache(client, model, ("input_ids", "attention_mask")) as it:
        deployed = PipelinedCausalLM(it, model.config, generation)
        del settled["attention_mask"]
        settled["input_ids"] = PADDED["input_ids"] + 1
        assert torch.equal(generated(deployed, do_sample=False), generated(model, do_sample=False))
        with pytest.raises(InvalidArgument, match="export the model with position_ids"):
            deployed.generate(**PADDED, max_new_tokens=1)


@pytest.mark.parametrize("name", ["seq2seq/t5", *nightly(["seq2seq/bart", "speech/whisper"])])
def test_an_encoder_with_a_decoder_gives_the_tokens_of_the_model(client: PlannerClient, name: str) -> None:
    from transformers import GenerationMixin

    from planner.client.generation import PipelinedSeq2SeqLM

    architecture = find_architecture(name)
    model = architecture.module()
    batch, sequence, target = (torch.export.Dim(one, min=1, max=LENGTH) for one in ("batch", "sequence", "target"))
    if name.startswith("speech"):
        encoded = {"input_features": architecture.kind.batch(1)["input_features"]}
        shapes: dict[str, Any] = {"input_features": {0: batch}}
    else:
        encoded, shapes = PADDED, {key: {0: batch, 1: sequence} for key in PADDED}
    model.config.use_cache, model.generation_config.decoder_start_token_id = False, 2
    exported = export(
        model,
        (),
        {**encoded, "decoder_input_ids": torch.tensor([[2, 4, 5], [2, 6, 3]])},
        dynamic_shapes={**shapes, "decoder_input_ids": {0: batch, 1: target}},
    )

    def generated(generate: Any, **options: Any) -> torch.Tensor:
        torch.manual_seed(7)
        tokens: torch.Tensor = generate(**{**encoded, "max_new_tokens": 5, **options})
        return tokens

    # Whisper has one around it, which goes from window to window of what is heard.
    of_model = partial(GenerationMixin.generate, model)
    with deployed_as(client, exported, outputs=("logits[:, -1:]",)) as (_, pipeline):
        deployed = PipelinedSeq2SeqLM(pipeline, model.config, model.generation_config)
        for options in ({}, {"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2, "eos_token_id": None}):
            assert torch.equal(generated(deployed.generate, **options), generated(of_model, **options))
        rows = encoded[deployed.main_input_name]
        each = deployed.generate_each([rows[:1], rows[1:], rows], max_new_tokens=5)
        for given, tokens in zip((rows[:1], rows[1:], rows), each, strict=True):
            assert torch.equal(tokens, of_model(given, max_new_tokens=5))
        with pytest.raises(InvalidArgument, match="assisted generation"):
            deployed.generate(**encoded, prompt_lookup_num_tokens=2)
        with pytest.raises(InvalidArgument, match="decoder_attention_mask: it hides"):
            deployed.generate(**encoded, decoder_attention_mask=torch.zeros(2, 1, dtype=torch.int64), max_new_tokens=1)


@pytest.mark.parametrize("name", ["seq2seq/t5", *nightly(["seq2seq/bart", "seq2seq/t5gemma", "speech/whisper"])])
def test_a_decoder_with_a_cache_beside_its_encoder_gives_the_tokens_of_the_model(
    client: PlannerClient, name: str
) -> None:
    from transformers import GenerationMixin

    from planner.client import CachedModel
    from planner.client.generation import PipelinedSeq2SeqLM

    architecture = find_architecture(name)
    model, is_speech = architecture.module(), name.startswith("speech")
    model.generation_config.decoder_start_token_id = 2
    batch, sequence = torch.export.Dim("batch", min=1, max=8), torch.export.Dim("sequence", min=2, max=LENGTH)
    if is_speech:
        encoded = {"input_features": architecture.kind.batch(1)["input_features"]}
        shapes: dict[str, Any] = {"input_features": {0: batch}}
    else:
        encoded, shapes = PADDED, {key: {0: batch, 1: sequence} for key in PADDED}
    rows = encoded["input_features" if is_speech else "input_ids"]
    num_encoded = model.get_encoder()(rows)[0].shape[1]

    def generated(generate: Any, **options: Any) -> torch.Tensor:
        torch.manual_seed(7)
        tokens: torch.Tensor = generate(**{**encoded, "max_new_tokens": 6, "eos_token_id": None, **options})
        return tokens

    def one_row(**options: Any) -> dict[str, Any]:
        return {**{name: values[1:] for name, values in encoded.items()}, **options}

    asked: list[dict[str, Any]] = [
        {},
        {"do_sample": True},
        one_row(num_beams=2),
        one_row(num_beams=2, num_return_sequences=2),
    ]
    expected = [generated(partial(GenerationMixin.generate, model), **options) for options in asked]
    encoder = export(model.get_encoder(), (), encoded, dynamic_shapes=shapes)
    size = CacheSize(length=LENGTH, batch_size=2, num_slots=2, has_beams=True, encoded_length=num_encoded + 3)
    if is_speech:
        size = replace(size, encoded_length=num_encoded)
    cached = CachedModel.of(model, size)
    inputs, dynamic = cached.example()
    decoder = export(cached.module, (), inputs, dynamic_shapes=dynamic)
    with (
        deployed_as(client, encoder, outputs=("last_hidden_state",)) as (_, of_encoder),
        deployed_as(client, decoder, outputs=("output[:, -1:]",)) as (deployment_id, pipeline),
    ):
        deployed = PipelinedSeq2SeqLM(pipeline, model.config, model.generation_config, encoder=of_encoder)
        for options, tokens in zip(asked, expected, strict=True):
            assert torch.equal(generated(deployed.generate, **options), tokens)

        sent = count()

        def kills_once(ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
            if next(sent) == 3:
                kill_second_stage(client, deployment_id)
            return torch.zeros(ids.shape[0], dtype=torch.bool)

        for options, tokens in zip(asked[::2], expected[::2], strict=True):
            sent = count()
            assert torch.equal(generated(deployed.generate, **options, stopping_criteria=[kills_once]), tokens)
        assert client.get_deployment(deployment_id).generation > 2

        unmasked = one_row(max_new_tokens=6, eos_token_id=None, num_beams=2)
        unmasked.pop("attention_mask", None)
        prompt = unmasked.pop("input_features" if is_speech else "input_ids")
        each = deployed.generate_each([prompt] * 3, **unmasked)
        assert all(torch.equal(tokens, GenerationMixin.generate(model, prompt, **unmasked)) for tokens in each)
        with pytest.raises(InvalidArgument, match=r"1 sequences side by side, and the cache was exported for 2"):
            generated(deployed.generate, **one_row())
        with pytest.raises(InvalidArgument, match="decoder_attention_mask: it hides"):
            generated(deployed.generate, decoder_attention_mask=torch.zeros(2, 1, dtype=torch.int64))
        with pytest.raises(InvalidArgument, match="the graph is a decoder alone: give the pipeline of its encoder"):
            PipelinedSeq2SeqLM(pipeline, model.config)
        with pytest.raises(InvalidArgument, match="the encoder takes decoder_input_ids"):
            PipelinedSeq2SeqLM(pipeline, model.config, encoder=pipeline)
        with pytest.raises(InvalidArgument, match="beside an encoder it is a decoder with a cache"):
            PipelinedSeq2SeqLM(of_encoder, model.config, encoder=of_encoder)
        if not is_speech:
            with pytest.raises(
                InvalidArgument, match=r"8 encoded positions, and the graph keeps 7: .*encoded_length=8"
            ):
                deployed.generate(torch.ones(2, 8, dtype=torch.int64), max_new_tokens=1)


def test_what_generates_nothing_is_refused(client: PlannerClient, model: Any) -> None:
    from transformers import T5Config

    from planner.client.generation import PipelinedCausalLM, PipelinedSeq2SeqLM

    with with_cache(client, model, outputs="output[:, -1:].argmax(-1)") as (_, pipeline):
        with pytest.raises(InvalidArgument, match=r"gives output.* torch\.int64\[1, 1\]: open it with"):
            PipelinedCausalLM(pipeline, model.config).generate(PROMPT, max_new_tokens=1)
        with pytest.raises(InvalidArgument, match="take PipelinedSeq2SeqLM"):
            PipelinedCausalLM(pipeline, T5Config())
        with pytest.raises(InvalidArgument, match="take PipelinedCausalLM"):
            PipelinedSeq2SeqLM(pipeline, model.config)
        with pytest.raises(InvalidArgument, match="the graph takes input_ids, cache_position; generate gives one of"):
            PipelinedSeq2SeqLM(pipeline, T5Config())
    layer = torch.nn.Linear(4, 4)
    plan = client.create_plan(client.submit(export(layer, (torch.ones(2, 4),))).id, BalancedMode(num_stages=1))
    deployment = client.deploy(plan.id)
    with (
        client.pipeline(deployment.id) as pipeline,
        pytest.raises(InvalidArgument, match="the graph takes input; generate gives input_ids"),
    ):
        PipelinedCausalLM(pipeline, model.config)
    client.stop(deployment.id)
