"""Golden encoder states, logits and attention to the states of random Whisper models in float64, from Hugging Face
transformers.

    python whisper_goldens.py ../testdata/whisper [NAME]

A row of `MODELS` is a folder as it is published: `config.json` and `model.safetensors`.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import WhisperConfig, WhisperForConditionalGeneration

import float64
from goldens import DTYPES, digits

WINDOWS = 2
LENGTHS = [9, 4]

# Both sizes of mel; the second has the proportions of large-v3-turbo: more layers in the encoder.
MODELS = {
    "whisper-80": dict(stored="float16", d_model=128, encoder_attention_heads=2, decoder_attention_heads=2, encoder_layers=2,
                       decoder_layers=2, encoder_ffn_dim=192, decoder_ffn_dim=256, num_mel_bins=80,
                       max_source_positions=24),
    "whisper-128-turbo": dict(stored="bfloat16", d_model=64, encoder_attention_heads=1, decoder_attention_heads=1,
                              encoder_layers=3, decoder_layers=1, encoder_ffn_dim=128, decoder_ffn_dim=128,
                              num_mel_bins=128, max_source_positions=19),
}


def golden(model: WhisperForConditionalGeneration, config: WhisperConfig) -> dict:
    shape = (WINDOWS, 2 * config.max_source_positions, config.num_mel_bins)
    frames = (torch.rand(shape) * 2 - 1).mul(1000).round() / 1000
    ids = [torch.randint(3, config.vocab_size, (length,)).tolist() for length in LENGTHS]
    with torch.no_grad(), float64.Only64():
        states = model.model.encoder(frames.transpose(1, 2)).last_hidden_state
        passes = [model(encoder_outputs=(states[i : i + 1],), decoder_input_ids=torch.tensor([ids[i]]),
                        output_attentions=True) for i in range(WINDOWS)]
    return {
        "made_by": f"training/whisper_goldens.py, transformers {transformers.__version__}, float64",
        "frames": [[[round(v, 3) for v in row] for row in window] for window in frames.tolist()],
        "states": digits(states),
        "ids": ids,
        "logits": [digits(each.logits[0]) for each in passes],
        # [window][layer][head][token][position], after softmax
        "attention": [[digits(layer[0]) for layer in each.cross_attentions] for each in passes],
    }


def make(folder: Path, name: str) -> None:
    fields = dict(MODELS[name])
    dtype = DTYPES[fields.pop("stored")]
    torch.manual_seed(sum(name.encode()))
    config = WhisperConfig(vocab_size=300, max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                           decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None, **fields)
    config._attn_implementation = "eager"
    model = WhisperForConditionalGeneration(config).double().eval()
    for key, values in model.state_dict().items():
        with torch.no_grad():
            # Wide enough that attention differs between positions; norms stay near 1.
            scale = 0.15 if values.dim() > 1 else 0.1
            noise = torch.randn_like(values) * scale
            if "embed_positions" in key and "encoder" in key:
                noise = values
            values.copy_((noise + (1 if "norm.weight" in key else 0)).to(dtype))
    float64.check(model)
    stored = {key: values.to(dtype).contiguous() for key, values in model.state_dict().items() if key != "proj_out.weight"}
    folder = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config.to_diff_dict() | {"model_type": "whisper"}, indent=1) + "\n")
    (folder / "golden.json").write_text(json.dumps(golden(model, config), separators=(",", ":")))


if __name__ == "__main__":
    float64.everywhere()
    for chosen in sys.argv[2:] or MODELS:
        make(Path(sys.argv[1]), chosen)
