#!/usr/bin/env python3
"""A quarter of a second of two tones (440 Hz left, 880 Hz right) in each audio format, in testdata/audio.

Usage: audio_files.py FOLDER. Needs: av numpy soundfile
"""

import os
import sys
from fractions import Fraction

import av
import numpy as np
import soundfile

os.chdir(sys.argv[1])
RATE, COUNT = 44_100, 11_025
time = np.arange(COUNT) / RATE
tones = np.stack([0.4 * np.sin(2 * np.pi * frequency * time) for frequency in (440, 880)]).astype(np.float32)
FILES = [
    ("opus.ogg", "libopus", 48_000),
    ("aac.m4a", "aac", 44_100),
    ("alac.m4a", "alac", 44_100),
    ("mp3.mp3", "libmp3lame", 44_100),
    ("flac.flac", "flac", 44_100),
    ("pcm.wav", "pcm_s16le", 44_100),
]
for name, codec, rate in FILES:
    with av.open(name, "w") as file:
        stream = file.add_stream(codec, rate=rate, layout="stereo")
        frame = av.AudioFrame.from_ndarray(tones, format="fltp", layout="stereo")
        frame.sample_rate, frame.time_base, frame.pts = RATE, Fraction(1, RATE), 0
        resampler = av.AudioResampler(stream.format, "stereo", rate, frame_size=stream.frame_size or 0)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(stream.encode(part))
        file.mux(stream.encode(None))
# FFmpeg's own encoder of Vorbis loses half of the second tone.
soundfile.write("vorbis.ogg", tones.T, RATE, format="OGG", subtype="VORBIS")
with av.open("video.mp4", "w") as file:
    stream = file.add_stream("mpeg4", rate=10)
    stream.width, stream.height, stream.pix_fmt = 16, 16, "yuv420p"
    for _ in range(3):
        file.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")))
    file.mux(stream.encode(None))
