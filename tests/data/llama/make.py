"""What transformers' Llama computes: made once with transformers 5.23.0 and torch 2.14.0, which the tests need not have.

    pip install transformers && python tests/data/llama/make.py

Each folder is a model as save_pretrained() writes it, and expected.safetensors: tokens, their logits, and the greedy
continuation of the first 8 of them.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
LONG = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
DIMENSIONS = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # so that attention matters
}

for name, tied, rope in (("plain", False, PLAIN), ("tied-and-scaled", True, LONG)):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**DIMENSIONS, tie_word_embeddings=tied, rope_parameters=rope)).eval()
    folder = Path(__file__).parent / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    tokens = torch.randint(32, (2, 48))
    with torch.no_grad():
        logits = model(tokens).logits
    greedy = model.generate(tokens[:, :8], max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)
    expected = {"tokens": tokens, "logits": logits, "greedy": greedy[:, 8:].contiguous()}
    save_file(expected, folder / "expected.safetensors")
