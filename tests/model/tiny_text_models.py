"""Folders as transformers writes them: tiny text encoders with random weights and their words."""

import csv

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    BertModel,
    CamembertConfig,
    CamembertModel,
    DistilBertConfig,
    DistilBertModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

WORDS = {"sport": "goal match team ball", "food": "bread soup cheese salt", "sky": "star moon rain"}
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
VOCABULARY = [*SPECIAL, "so", *" ".join(WORDS.values()).split()]
PAD = SPECIAL.index("<pad>")

COMMON = {"vocab_size": len(VOCABULARY), "pad_token_id": PAD}
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
FAMILIES = {
    "bert": lambda: BertModel(BertConfig(**COMMON, **SIZES), add_pooling_layer=False),
    "roberta": lambda: RobertaModel(RobertaConfig(**COMMON, **SIZES), add_pooling_layer=False),
    "xlm-roberta": lambda: XLMRobertaModel(
        XLMRobertaConfig(**COMMON, **SIZES), add_pooling_layer=False
    ),
    "camembert-roberta": lambda: CamembertModel(
        CamembertConfig(**COMMON, **SIZES), add_pooling_layer=False
    ),
    "mpnet": lambda: MPNetModel(MPNetConfig(**COMMON, **SIZES), add_pooling_layer=False),
    "distilbert": lambda: DistilBertModel(
        DistilBertConfig(
            **COMMON, dim=32, n_layers=3, n_heads=2, hidden_dim=48, max_position_embeddings=40
        )
    ),
    "modernbert": lambda: ModernBertModel(
        ModernBertConfig(
            **COMMON,
            **SIZES,
            bos_token_id=0,
            eos_token_id=2,
            cls_token_id=0,
            sep_token_id=2,
            local_attention=4,
            global_attn_every_n_layers=2,
        )
    ),
}


def tokenizer():
    """Words are tokens; every text begins with <s> and ends with </s>."""
    plain = Tokenizer(WordLevel({w: i for i, w in enumerate(VOCABULARY)}, unk_token="<unk>"))
    plain.pre_tokenizer = Whitespace()
    plain.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def write_text_model(family, folder):
    """The folder of one of `FAMILIES`; weights large enough that layers matter."""
    torch.manual_seed(0)
    model = FAMILIES[family]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(5)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def write_notes(path):
    """Three clients' notes: every class has words of its own."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["client", "label", "text"])
        for i, client in enumerate(("anna", "bob", "chen")):
            for _ in range(20):
                label = [*WORDS][i] if rng.random() < 0.4 else rng.choice([*WORDS])
                words = rng.choice([*WORDS[label].split(), "so"], rng.integers(3, 8))
                rows.writerow([client, label, " ".join(words)])
    return path
