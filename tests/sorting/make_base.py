"""Makes base/, the tests' tiny model: Llama's shape, 0.38M parameters, SmolLM2's chat template.

In: a seed. Out: a folder that loads like any base model. It is taught three habits in answer to
"Sort the digits.": sort them (about three answers in ten), say them as they came, sort them
downwards. So it can do the task, does not yet know that it should, and a turn of the wheel can
teach it. No habit is the clear favourite: training on its own ungraded answers must not help.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

from flywheel.records import Message, say
from trainer.render import Rendering, renderer_for
from trainer.smol import DEFAULT_SYSTEM, TEMPLATE, TOOLS

INSTRUCTION = "Sort the digits."
LENGTHS = (3, 4, 5, 6)
HABITS = {"up": 0.30, "as given": 0.35, "down": 0.35}
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>",
    "<filename>", "<gh_stars>", "<issue_start>", "<issue_comment>", "<issue_closed>",
    "<jupyter_start>", "<jupyter_text>", "<jupyter_code>", "<jupyter_output>", "<jupyter_script>",
    "<empty_output>",
)  # fmt: skip
"""SmolLM2's, in its order: end of turn is id 2 here too, and padding is the same token."""


def prompt_of(digits: list[int]) -> list[Message]:
    return [say("system", INSTRUCTION), say("user", " ".join(map(str, digits)))]


def draw(rng: random.Random) -> list[int]:
    return [rng.randrange(10) for _ in range(rng.choice(LENGTHS))]


def answer(digits: list[int], rng: random.Random) -> str:
    habit = rng.choices(list(HABITS), weights=list(HABITS.values()))[0]
    if habit != "as given":
        digits = sorted(digits, reverse=habit == "down")
    return " ".join(map(str, digits))


def make_tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    words = ["system", "user", "assistant", "tool", INSTRUCTION, DEFAULT_SYSTEM]
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*words * 50, TOOLS], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        chat_template=TEMPLATE,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(str(folder), save_jinja_files=False)
    return fast


def make_model(vocabulary: int) -> Any:
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=False,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    return model


def batch_of(rendering: Rendering, rng: random.Random, size: int) -> tuple[Any, Any]:
    """Ids and labels, padded on the right; -100 = not trained on."""
    import torch

    rows = []
    for _ in range(size):
        digits = draw(rng)
        target = say("assistant", answer(digits, rng))
        rows.append(rendering.render_sample(prompt_of(digits), target))
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.full((size, longest), 2)
    labels = torch.full((size, longest), -100)
    for row, (tokens, mask) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        kept = [token if trained else -100 for token, trained in zip(tokens, mask, strict=True)]
        labels[row, : len(tokens)] = torch.tensor(kept)
    return ids, labels


def train(model: Any, rendering: Rendering, *, seed: int, steps: int, size: int) -> None:
    import torch

    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=3e-3, total_steps=steps, pct_start=0.1
    )
    model.train()
    for step in range(steps):
        ids, labels = batch_of(rendering, rng, size)
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    model.eval()


def sampled_reward(
    model: Any, rendering: Rendering, *, temperature: float, seed: int = 1, count: int = 400
) -> dict[str, float]:
    """Share of sampled answers that are sorted upwards and end, overall and by length."""
    import torch

    rng = random.Random(seed)
    torch.manual_seed(seed)
    right: dict[str, list[float]] = {"all": []}
    for length in LENGTHS:
        problems = [[rng.randrange(10) for _ in range(length)] for _ in range(count // 4)]
        prompts = torch.tensor([rendering.render_prompt(prompt_of(d)) for d in problems])
        with torch.no_grad():
            out = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                temperature=temperature,
                top_k=0,
                max_new_tokens=16,
            )
        for digits, ids in zip(problems, out[:, prompts.shape[1] :].tolist(), strict=True):
            said = rendering.parse(ids[: ids.index(2) + 1] if 2 in ids else ids)
            wanted = " ".join(map(str, sorted(digits)))
            good = float(said.finish_reason == "stop" and said.message.text == wanted)
            right["all"].append(good)
            right.setdefault(str(length), []).append(good)
    return {name: sum(values) / len(values) for name, values in right.items()}


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "base")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--size", type=int, default=96)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    options.folder.mkdir(parents=True, exist_ok=True)
    rendering = renderer_for(make_tokenizer(options.folder))
    model = make_model(512)
    train(model, rendering, seed=options.seed, steps=options.steps, size=options.size)
    model.save_pretrained(str(options.folder))
    (options.folder / "model.safetensors").chmod(0o644)
    for temperature in (1.0, 0.7):
        print(temperature, json.dumps(sampled_reward(model, rendering, temperature=temperature)))


if __name__ == "__main__":
    main()
