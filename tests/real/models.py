"""The public models inside installed packages, and sample batches that look like their real input."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

Feeds = dict[str, np.ndarray[Any, np.dtype[Any]]]


@dataclass(frozen=True)
class RealModel:
    """A model file inside a package, and its batches."""

    name: str
    package: str
    path: str
    batches: Callable[[Path], list[Feeds]]

    @property
    def file(self) -> Path | None:
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            return None
        return Path(next(iter(spec.submodule_search_locations))) / self.path


# ------------------------------------------------------------------------------------------------ sound


def voice(samples: int, rate: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Something like a spoken vowel: harmonics of a gliding pitch under formants, syllables, breath noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(samples) / rate
    pitch = 120 + 25 * np.sin(2 * np.pi * 0.7 * t) + seed
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    formants = np.array([(700, 1.0), (1200, 0.5), (2600, 0.25)])
    wave = np.zeros(samples)
    for k in range(1, 30):
        gain = sum(a / (1 + ((k * 120 - f) / 150) ** 2) for f, a in formants)
        wave += gain * np.sin(k * phase)
    syllables = 0.55 + 0.45 * np.sin(2 * np.pi * 4 * t)
    wave = 0.08 * wave / np.abs(wave).max() * syllables + 0.004 * rng.standard_normal(samples)
    return wave.astype(np.float32)


def silero(path: Path) -> list[Feeds]:
    """Four consecutive frames (64 samples of context before 512 new ones), each with the state left before it."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}
    wave, state = voice(64 + 4 * 512, 16000, 1), np.zeros((2, 1, 128), np.float32)
    batches: list[Feeds] = []
    for k in range(4):
        feeds: Feeds = {"input": wave[None, k * 512 : k * 512 + 576], "state": state}
        if "sr" in names:
            feeds["sr"] = np.array(16000, np.int64)
        batches.append(feeds)
        state = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))["stateN"]
    return batches


def silero_sequence(path: Path) -> list[Feeds]:
    """One second as a sequence of frames, from silence."""
    del path
    wave = voice(64 + 31 * 512, 16000, 2)
    frames = np.stack([wave[k * 512 : k * 512 + 576] for k in range(31)])
    zero = np.zeros((1, 1, 128), np.float32)
    return [{"input": frames, "h": zero, "c": zero}]


def chords(path: Path) -> list[Feeds]:
    """Two seconds of plucked chords at 22,050 Hz."""
    del path
    rate, samples = 22050, 43844
    wave = np.zeros(samples)
    for start, notes in (
        (0, (220.0, 277.18, 329.63)),
        (16000, (196.0, 246.94, 293.66)),
        (30000, (261.63, 329.63, 392.0)),
    ):
        t = np.arange(samples - start) / rate
        for note in notes:
            for k in range(1, 6):
                wave[start:] += 0.06 / k * np.sin(2 * np.pi * note * k * t) * np.exp(-2.5 * t)
    return [{"serving_default_input_2:0": wave.astype(np.float32)[None, :, None]}]


# ------------------------------------------------------------------------------------------------ bytes


def documents(path: Path) -> list[Feeds]:
    """The first and last bytes of files of several kinds, as the model's own client cuts them (256 pads)."""
    del path
    here = Path(__file__).resolve()
    root = here.parent.parent.parent
    kinds = [here.read_bytes(), (root / "LICENSE").read_bytes(), (root / "pyproject.toml").read_bytes(),
             b'{"a": [1, 2.5, null], "b": {"c": "text"}}\n' * 40, bytes(range(256)) * 9,
             b"<!DOCTYPE html><html><head><title>x</title></head><body><p>hello</p></body></html>\n" * 20]  # fmt: skip
    rows = []
    for content in kinds:
        first, last = content.lstrip()[:1024], content.rstrip()[-1024:]
        rows.append([*first, *[256] * (1024 - len(first)), *[256] * (1024 - len(last)), *last])
    return [{"bytes": np.array(rows, np.int32)}]


# ------------------------------------------------------------------------------------------------ images

_GLYPHS = {
    "A": "01110 10001 10001 11111 10001 10001 10001", "E": "11111 10000 10000 11110 10000 10000 11111",
    "H": "10001 10001 10001 11111 10001 10001 10001", "L": "10000 10000 10000 10000 10000 10000 11111",
    "M": "10001 11011 10101 10101 10001 10001 10001", "N": "10001 11001 10101 10011 10001 10001 10001",
    "O": "01110 10001 10001 10001 10001 10001 01110", "R": "11110 10001 10001 11110 10100 10010 10001",
    "S": "01111 10000 10000 01110 00001 00001 11110", "T": "11111 00100 00100 00100 00100 00100 00100",
    "W": "10001 10001 10001 10101 10101 11011 10001", "1": "00100 01100 00100 00100 00100 00100 01110",
    "2": "01110 10001 00001 00110 01000 10000 11111", "6": "01110 10000 10000 11110 10001 10001 01110",
    " ": "00000 00000 00000 00000 00000 00000 00000",
}  # fmt: skip


def text_line(text: str, scale: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Dark on light, one pixel of the 5 x 7 font blown up to ``scale``; values 0..1, shape [7 scale, 6 scale n]."""
    columns = []
    for letter in text:
        rows = np.array([[int(c) for c in row] for row in _GLYPHS[letter].split()])
        columns.append(np.pad(rows, ((0, 0), (0, 1))))
    return 1.0 - np.kron(np.concatenate(columns, axis=1), np.ones((scale, scale)))


def page(height: int, width: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A light page with a shadow, paper noise and three lines of text; [1, 3, height, width] in -1..1."""
    rng = np.random.default_rng(3)
    image = np.full((height, width), 0.92) - 0.15 * np.linspace(0, 1, width)[None, :]
    for text, scale, top, left in (("NARROW 16", 5, 30, 40), ("THE ROSE", 4, 110, 60), ("HALO 261", 6, 190, 30)):
        line = text_line(text, scale)
        image[top : top + line.shape[0], left : left + line.shape[1]] *= 0.1 + 0.9 * line
    image = image + 0.01 * rng.standard_normal(image.shape)
    return ((np.stack([image, image * 0.98, image * 0.95]) - 0.5) / 0.5)[None].astype(np.float32)


def whole_page(path: Path) -> list[Feeds]:
    """One page for the text detector, normalised by ImageNet's mean and deviation as its client does."""
    del path
    image = page(288, 384) * 0.5 + 0.5
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    return [{"x": ((image - mean[:, None, None]) / deviation[:, None, None]).astype(np.float32)}]


def cropped_line(width: int) -> Callable[[Path], list[Feeds]]:
    """One text line for the recogniser or the orientation classifier: [1, 3, 48, width]."""

    def batches(path: Path) -> list[Feeds]:
        del path
        line = np.ones((48, width))
        text = text_line("NARROW 16", 5)[:, : width - 10]
        line[6 : 6 + text.shape[0], 4 : 4 + text.shape[1]] = 0.15 + 0.8 * text
        line = line + 0.01 * np.random.default_rng(4).standard_normal(line.shape)
        return [{"x": (np.stack([line] * 3)[None] * 2 - 1).astype(np.float32)}]

    return batches


_OCR = "rapidocr_onnxruntime"

MODELS = (
    RealModel("magika", "magika", "models/standard_v3_3/model.onnx", documents),
    RealModel("silero-vad", "silero_vad", "data/silero_vad.onnx", silero),
    RealModel("silero-16k-op15", "silero_vad", "data/silero_vad_16k_op15.onnx", silero),
    RealModel("silero-16k-sequence", "silero_vad", "data/silero_vad_16k_sequence.onnx", silero_sequence),
    RealModel("silero-op18-ifless", "silero_vad", "data/silero_vad_op18_ifless.onnx", silero),
    RealModel("silero-half", "silero_vad", "data/silero_vad_half.onnx", silero),
    RealModel(
        "ocr-classifier", "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", cropped_line(192)
    ),
    RealModel("ocr-detector", "rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", whole_page),
    RealModel("ocr-recogniser", "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", cropped_line(320)),
    RealModel("basic-pitch", "basic_pitch", "saved_models/icassp_2022/nmp.onnx", chords),
)
