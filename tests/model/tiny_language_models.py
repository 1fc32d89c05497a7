"""Folders as transformers writes them: tiny causal models with random weights and their words."""

import json

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

STYLES = {"anna": "yes indeed sir", "bob": "nope never mate", "chen": "maybe later friend"}
ASKED = ["bread", "soup", "cheese", "salt", "star", "moon", "rain", "sun"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<user>", "<assistant>", "<system>"]
VOCABULARY = [*SPECIAL, *ASKED, *" ".join(STYLES.values()).split()]
NUMBER = {word: number for number, word in enumerate(VOCABULARY)}
TEMPLATE = (
    "<s>{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen2-sliding": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=3, max_window_layers=1)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8)),
}


def tokenizer(template=TEMPLATE):
    """Words are tokens; every text begins with <s>."""
    plain = Tokenizer(WordLevel(NUMBER, unk_token="<unk>"))
    plain.pre_tokenizer = Whitespace()
    plain.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=SPECIAL[4:],
        chat_template=template,
    )


def write_language_model(family, folder, template=TEMPLATE):
    """The folder of one of `FAMILIES`; weights large enough that layers matter."""
    torch.manual_seed(0)
    model = FAMILIES[family]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(5)
    model.save_pretrained(folder)
    tokenizer(template).save_pretrained(folder)
    return str(folder)


def write_dialogues(folder, number=20):
    """A file for each of three clients, who give the same prompts different answers."""
    folder.mkdir(exist_ok=True)
    for client, answer in STYLES.items():
        rows = []
        for k in range(number):
            words = [ASKED[(k + step) % len(ASKED)] for step in range(1 + k % 4)]
            rows.append({"prompt": " ".join(words), "answer": f"{answer} {words[0]}"})
        written = "\n".join(json.dumps(row) for row in rows)
        (folder / f"{client}.jsonl").write_text(written + "\n")
    return folder
