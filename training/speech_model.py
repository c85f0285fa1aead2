"""The speech model: a small Whisper, what it hears, and what training adds to its loss."""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import WhisperConfig, WhisperForConditionalGeneration
from transformers.audio_utils import mel_filter_bank

from speech_data import (CONTEXT, DE, EN, END, FIRST_TIME, IGNORED, NO_TIMESTAMPS, POSITIONS, PREVIOUS, START, TIMESTAMPS, TRANSCRIBE,
                         TRANSLATE, VOCABULARY, WINDOW)
from speech_espeak import PHONEMES, RATE

BANDS = 80


def config() -> WhisperConfig:
    return WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=BANDS, d_model=192, encoder_layers=6, encoder_attention_heads=3, decoder_layers=3,
        decoder_attention_heads=3, encoder_ffn_dim=768, decoder_ffn_dim=512, max_source_positions=POSITIONS,
        max_target_positions=CONTEXT, pad_token_id=END, bos_token_id=END, eos_token_id=END, decoder_start_token_id=START,
        suppress_tokens=None, begin_suppress_tokens=None, dropout=0.0, activation_function="gelu")


# ---- from sound to frames ----


class FrontEnd(nn.Module):
    """Windows out of a pool of samples, with noise and filters, as Whisper's log-mel frames."""

    def __init__(self, device: str):
        super().__init__()
        filters = mel_filter_bank(201, BANDS, 0.0, RATE / 2, RATE, norm="slaney", mel_scale="slaney")
        self.register_buffer("filters", torch.tensor(filters.T, dtype=torch.float32, device=device))
        self.register_buffer("hann", torch.hann_window(400, device=device))
        self.register_buffer("at", torch.arange(WINDOW, device=device))
        self.register_buffer("hertz", torch.linspace(0, RATE / 2, 201, device=device))

    def assemble(self, pool: Tensor, sounds: Tensor) -> Tensor:
        source, place, length = (part.contiguous() for part in sounds.unbind(-1))
        part = torch.searchsorted(place, self.at.repeat(len(place), 1), right=True).sub_(1)
        first = part < 0
        part.clamp_(min=0)
        within = self.at - place.gather(1, part)
        heard = (within < length.gather(1, part)) & ~first
        index = (source.gather(1, part) + within).clamp_(0, len(pool) - 1)
        level = torch.empty(place.shape, device=place.device).uniform_(-3, 3)
        return torch.where(heard, pool[index].float() * (10 ** (level / 20)).gather(1, part) / 32768, 0.0)

    def spectrum(self, audio: Tensor) -> Tensor:
        return torch.stft(audio, 400, 160, window=self.hann, return_complex=True)[..., :-1]

    def log_mel(self, power: Tensor, louder: Tensor | float = 0.0) -> Tensor:
        frames = (self.filters @ power).clamp(min=1e-10).log10()
        loudest = frames.amax(dim=(1, 2), keepdim=True) + louder
        return (torch.maximum(frames, loudest - 8.0) + 4.0) / 4.0

    def plain(self, audio: Tensor) -> Tensor:
        return self.log_mel(self.spectrum(audio).abs() ** 2)

    def curve(self, rows: int, strength: float) -> Tensor:
        """A random smooth gain over frequencies, with steep cuts at times."""
        device = self.hertz.device
        points = torch.randn(rows, 1, 6, device=device) * strength
        decibels = F.interpolate(points, size=201, mode="linear", align_corners=True)[:, 0]
        low = torch.rand(rows, 1, device=device) * 300 * (torch.rand(rows, 1, device=device) < 0.2)
        high = torch.where(torch.rand(rows, 1, device=device) < 0.15, 3300 + 4000 * torch.rand(rows, 1, device=device), 9000)
        decibels = decibels - 40 * ((low - self.hertz) / 200).clamp(0, 1) - 50 * ((self.hertz - high) / 500).clamp(0, 1)
        return 10 ** (decibels / 20)

    def warp(self, power: Tensor, factor: Tensor) -> Tensor:
        """Frequencies multiplied, as by a shorter or longer vocal tract."""
        at = (torch.arange(201, device=power.device) * factor).clamp(max=199.99)
        below = at.floor()
        part = (at - below)[:, :, None]
        index = below.long()[:, :, None].expand_as(power)
        return power.gather(1, index) * (1 - part) + power.gather(1, index + 1) * part

    def forward(self, pool: Tensor, sounds: Tensor, end: Tensor) -> Tensor:
        rows, device = len(sounds), sounds.device

        def chance(probability: float) -> Tensor:
            return torch.rand(rows, 1, device=device) < probability

        audio = self.assemble(pool, sounds)
        noise = torch.randn_like(audio)
        noise = noise * (self.at < torch.where(chance(0.5), end[:, None], WINDOW))
        ratio = torch.empty(rows, 1, device=device).uniform_(3, 45)
        level = 0.07 * 10 ** (-ratio / 20) * ~chance(0.3)
        hum = 0.003 * torch.sin(self.at * (2 * math.pi * 50 / RATE)) * chance(0.1)
        audio = audio + hum
        plain = torch.ones(1, 1, device=device)
        tone = torch.where(chance(0.6), self.curve(rows, 4.0), plain)
        tilt = 10 ** (torch.rand(rows, 1, device=device) * -2 * (self.hertz / 2000).clamp(min=0.1).log10() / 2)
        color = self.curve(rows, 6.0) * torch.where(chance(0.6), tilt, plain) * level
        heard = self.spectrum(audio) * tone[:, :, None] + self.spectrum(noise) * color[:, :, None]
        loudness = 10 ** (torch.empty(rows, 1, 1, device=device).uniform_(-25, 0) / 10)
        louder = torch.rand(rows, 1, 1, device=device) * 0.8 * chance(0.25)[:, :, None]
        power = self.warp(heard.abs() ** 2, 1 + torch.empty(rows, 1, device=device).uniform_(-0.12, 0.14) * chance(0.6))
        frames = self.log_mel(power * loudness, louder)
        # OpenAI's transcription appends frames of 0 rather than silence.
        until = torch.where(chance(0.5), (end[:, None] + 159) // 160, WINDOW // 160)
        return frames * (torch.arange(WINDOW // 160, device=device) < until)[:, None, :]


# ---- the model in training ----


def decode(model: WhisperForConditionalGeneration, ids: Tensor, states: Tensor) -> Tensor:
    """The decoder's states. Its own `forward` looks for packed sequences, for which the host waits for the device."""
    decoder = model.model.decoder
    hidden = decoder.embed_tokens(ids) + decoder.embed_positions.weight[: ids.shape[1]]
    for layer in decoder.layers:
        hidden = layer(hidden, None, states, use_cache=False)
    return decoder.layer_norm(hidden)


class Learner(nn.Module):
    """The model, with a classifier of phonemes on the encoder and two heads of attention that learn when tokens are said.
    Neither the classifier nor anything else of this class is part of the model that results."""

    def __init__(self):
        super().__init__()
        self.model = WhisperForConditionalGeneration(config())
        self.phonemes = nn.Linear(self.model.config.d_model, PHONEMES)
        layers = self.model.model.decoder.layers
        self.aligned = [len(layers) - 2, len(layers) - 1]
        self.kept: dict[tuple[int, str], Tensor] = {}
        for index in self.aligned:
            for part in ("q_proj", "k_proj"):
                getattr(layers[index].encoder_attn, part).register_forward_hook(
                    lambda module, args, out, key=(index, part): self.kept.__setitem__(key, out))
        with torch.no_grad():
            # Timestamps begin as positions of the encoder.
            rows = self.model.model.decoder.embed_tokens.weight[FIRST_TIME:]
            rows[:POSITIONS] = 0.05 * self.model.model.encoder.embed_positions.weight
            rows[POSITIONS:] = rows[POSITIONS - 1]

    def forward(self, frames: Tensor, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        states = self.model.model.encoder(frames).last_hidden_state
        hidden = decode(self.model, batch["inputs"], states)
        logits = F.linear(hidden, self.model.model.decoder.embed_tokens.weight)
        targets = batch["targets"]
        answers = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)
        sounds = F.cross_entropy(self.phonemes(states).flatten(0, 1).float(), batch["phonemes"].flatten().long())
        with torch.no_grad():
            right = (logits.argmax(-1) == targets).sum() / (targets != IGNORED).sum()
        return {"answers": answers, "phonemes": sounds, "alignment": self.alignment(batch["times"]), "right": right}

    def alignment(self, times: Tensor) -> Tensor:
        """How much of the attention is outside of the time of the token that is predicted."""
        size = self.model.config.d_model // self.model.config.decoder_attention_heads
        known = times[..., 0] >= -0.5
        at = torch.arange(POSITIONS, device=times.device) * 0.02
        inside = (at >= times[..., :1] - 0.03) & (at <= times[..., 1:] + 0.01) & known[..., None]
        known = known & inside.any(-1)
        loss = 0.0
        for index in self.aligned:
            query, key = (self.kept[index, part][..., :size] for part in ("q_proj", "k_proj"))
            scores = (query @ key.transpose(1, 2)).float() * size**-0.5
            mass = scores.masked_fill(~inside, -1e4).logsumexp(-1) - scores.logsumexp(-1)
            loss = loss - torch.where(known, mass, 0.0).sum() / known.sum().clamp(min=1) / len(self.aligned)
        self.kept.clear()
        return loss


@torch.no_grad()
def answer(model: WhisperForConditionalGeneration, frames: Tensor, heads: Tensor, limit: int = 224) -> list[list[int]]:
    """Greedy answers without rules, for a look at a model in training."""
    states = model.model.encoder(frames).last_hidden_state
    ids, done = heads, torch.zeros(len(frames), dtype=torch.bool, device=frames.device)
    while ids.shape[1] < limit and not (ids.shape[1] % 16 == 0 and done.all()):
        following = F.linear(decode(model, ids, states)[:, -1], model.model.decoder.embed_tokens.weight).argmax(-1).masked_fill(done, END)
        ids = torch.cat([ids, following[:, None]], dim=1)
        done |= following == END
    return [[token for token in row if token != END] for row in ids[:, heads.shape[1]:].tolist()]


# ---- the folder ----


def write_model(folder: Path, learner: Learner, suppress: list[int], blank: list[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: values.detach().half().cpu().contiguous() for name, values in learner.model.state_dict().items()
               if name != "proj_out.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    fields = learner.model.config.to_dict() | {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper",
                                               "begin_suppress_tokens": blank, "suppress_tokens": suppress}
    fields["dtype"] = "float16"
    (folder / "config.json").write_text(json.dumps(fields, indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({
        "alignment_heads": [[index, 0] for index in learner.aligned],
        "begin_suppress_tokens": blank, "suppress_tokens": suppress,
        "bos_token_id": END, "eos_token_id": END, "pad_token_id": END, "decoder_start_token_id": START,
        "is_multilingual": True, "lang_to_id": {"<|en|>": EN, "<|de|>": DE},
        "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
        "max_initial_timestamp_index": 50, "max_length": CONTEXT, "no_timestamps_token_id": NO_TIMESTAMPS,
        "prev_sot_token_id": PREVIOUS, "return_timestamps": False,
    }, indent=1) + "\n")
    (folder / "preprocessor_config.json").write_text(json.dumps({
        "chunk_length": 30, "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": BANDS, "hop_length": 160,
        "n_fft": 400, "n_samples": WINDOW, "nb_max_frames": WINDOW // 160, "padding_side": "right", "padding_value": 0.0,
        "processor_class": "WhisperProcessor", "return_attention_mask": False, "sampling_rate": RATE,
    }, indent=1) + "\n")
    assert FIRST_TIME + TIMESTAMPS == VOCABULARY
