"""Writes a tiny Llama with random weights and a byte-level tokenizer into the folder named by argv[1].

Run by an engine's own interpreter, as a file: torch, transformers and tokenizers are installed only there.
The weights are the same every time. They are spread so that one token clearly leads at each step: with nearly
equal logits, batching alone would change the result of a greedy decode, and replies could not be compared.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 512
CONTEXT = 8192
PAD, BOS, EOS = 0, 1, 2
MARKERS = ["<|pad|>", "<|bos|>", "<|eos|>", "<|turn|>", "<|end|>"]
CHAT = (
    "{% for message in messages %}<|turn|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
CORPUS = [
    "Hello world! Hello there, world. Hello again!",
    "The fleet drains while the gateway waits for its workers.",
    "Tokens go in, tokens come out: 0 1 2 3 4 5 6 7 8 9 10 20 30 100.",
    "for item in items:\n    total += item\n",
    "Größe, café, naïve; 東京 and 北京; a rocket 🚀.",
]

# Standard deviations of the random weights, by kind of matrix.
SPREAD = {"embed_tokens": 1.0, "lm_head": 0.25}
SPREAD_ELSEWHERE = 0.09


def write_tokenizer(folder: Path) -> None:
    """Write a byte-pair tokenizer of at most VOCABULARY entries, and its settings."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=MARKERS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 10, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": MARKERS[BOS],
        "eos_token": MARKERS[EOS],
        "pad_token": MARKERS[PAD],
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def write_weights(folder: Path) -> None:
    """Write the weights: two layers, 128 wide."""
    torch.manual_seed(0)
    special = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        dtype="bfloat16",
        **special,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                kind = next((kind for kind in SPREAD if kind in name), "")
                weight.normal_(0, SPREAD.get(kind, SPREAD_ELSEWHERE))
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({**special, "do_sample": True}))


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    write_weights(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
