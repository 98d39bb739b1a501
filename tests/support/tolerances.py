"""Every tolerance of the suite, with its derivation; loosening one changes this file."""

from typing import Any

import pytest

# float32 logits at toy size, of two correct implementations: products of some 300 terms of order 1,
# summed in another order, through at most 5 layers. The official code and an independent one
# differed by 7e-6; a wrong formula moves logits by 1e-2 and more.
LOGITS_F32 = 2e-5

# Logits of the training forward in float64 against the plain decoder's, which computes in float64,
# too, and returns float32. Also those of a merged checkpoint, with weights rounded to float32.
TEACHER_FORCED = 1e-5

# float32 logits of 400 frames behind a prompt of 300 positions, against the official code. Each is
# off by at most this much, so two codes change places only where their logits differ by twice that.
LONG_LOGITS_F32 = 5e-5
TIE_F32 = 2 * LONG_LOGITS_F32

# float32 prompt rows: one matrix product and one addition.
PROMPT_F32 = 1e-6

# float32 samples in [-1, 1]: the official decoder differs from itself by 2.5e-6 in another split.
AUDIO_F32 = 1e-5

# float32 samples of the same layers on the same CPU, for other numbers of streams: 6e-8 was seen.
AUDIO_SAME_CPU_F32 = 1e-6

# The error of the native CPU vocoder, as a multiple of the error of torch's samples; both are root
# mean squares against float64. Direct sums of 64 terms at a time are more exact than torch's (0.9
# times was seen); the transforms along time, of 3 and 6 outputs, lose another 1.2 times, whatever
# the weights.
CPU_VOCODER_ERROR = 1.5

# float32 vocoder states relative to their largest value, two correct implementations: inputs of the
# deepest layers went through some sixty layers, and each snake with frequency 1 nearly doubles a
# rounding error; 1.2e-5 was seen. A history that is a step too old is off by a tenth.
STATE_F32 = 5e-5

# float32 samples, GPU against CPU: as AUDIO_F32, but in products whose terms are summed in blocks,
# some sixty layers deep. A layer too few or a state too old is off by 1e-2 and more.
AUDIO_GPU_F32 = 1e-4

# float64 samples and vocoder states (values up to 10), summed in two orders: 7e-15. One frame of
# context too few moves the state by 5e-9.
AUDIO_F64 = 1e-13

# 16-bit samples: half a step, and one step if sums round to different integers.
PCM16 = 1.5 / 32768
# Samples that are the integers themselves: one step.
PCM16_STEP = 1

# Core ML's models at the released shapes, relative to the largest expected value: every result is
# rounded to float16; the speech decoder's samples are float32, for AUDIO_GPU_F32's reasons.
COREML_RELEASED_F16, COREML_RELEASED_AUDIO = 2e-2, 1e-4

# Decibels of a float16 speech decoder's noise, which depends a little on the CPU's roundings.
COREML_NOISE_DB = 0.5

# The vocoder's activation, compiled by PyTorch for a GPU, against the four operations it replaces.
SNAKE_F32 = 1e-5

# float32 x-vector: seven layers of some 1500 terms, pooled over frames. The official code and ours
# differ by 2e-7; a window one sample too short (symmetric, not periodic) moves it by 1e-4.
X_VECTOR_F32 = 1e-5

# float32 logits of the kernel or the graphs, against the plain decoder: sums of at most 2080
# products in another order. The error grows as sqrt(n) roundings of 2^-24 relative to the sum of
# magnitudes, 1e-6 for these sizes, times the handful of layers on the path.
KERNEL_LOGITS_F32 = 1e-4

# Root mean square, logits of int8 weights in the CPU decoder: its activations have 16 bits with a
# scale for 64 columns, so each product is off by up to 2^-16 of the group's largest; 3e-4 was seen.
# If two libraries round such an activation to neighbouring values, logits differ by as much.
LOGITS_INT8_RMS = 1e-3

# float32 samples of SNAC, decoded in chunks and as a whole: convolutions over windows of other
# lengths, sums of at most some hundred products of order 1, so some hundred roundings of 6e-8.
SNAC_CHUNKS_F32 = 1e-5

# bf16 logits, the kernel against the plain decoder, with bf16 weights on both sides: the plain
# decoder also rounds activations to 2^-9 at some fifteen places a layer, the kernel does not:
# 2^-9 * sqrt(15 * 2) relative to logits of standard deviation 3.
KERNEL_LOGITS_BF16 = 0.15

# The same at the released depth and width, for validate_kernel.py, whose module derives them from
# measured errors. The RMS of all errors may be this share; the graphs round elsewhere.
RELEASED_LOGITS_BF16, RELEASED_RMS_SHARE, RELEASED_GRAPH_LOGITS_BF16 = 0.43, 0.2, 0.6

# bf16 logits, what nvcc compiled against the emulation, which sums in the same order: fused
# products and the GPU's exp2 differ by roundings of float32, and, if these affect a rounding to
# bf16 (keys and values), by a last bit of bf16: 2^-8 of one of some twenty positions, on logits of
# standard deviation 3.
PTX_LOGITS_BF16 = 3 * 2**-8

# float32 hidden states of size 1, of the kernel against the plain decoder: some ten sums of at most
# 448 products on the path of a toy; a prompt of 300 positions sums over all of them as well.
KERNEL_HIDDEN_F32 = 1e-5
KERNEL_PROMPT_F32 = 2e-5

# The same in bf16, where the plain decoder rounds activations and the kernel does not: a third of
# KERNEL_LOGITS_BF16, because hidden states have a third of the logits' spread.
KERNEL_PROMPT_BF16 = 0.05

# Products of the kernel (relative, norm of all): hi + lo activations lose 2^-17, bf16 and int8
# weights are exact on both sides; sums of 2080 products. One term alone is good to 1e-5.
KERNEL_PRODUCT_F32, KERNEL_PRODUCT_BF16 = 2e-6, 2e-5
KERNEL_ONE_TERM = 1e-5

# Products with int8 weights on PyTorch, relative to the sum of magnitudes; in bf16 the sum is
# float32, then scaled and rounded.
INT8_PRODUCT_F32, INT8_PRODUCT_BF16 = 1e-6, 3 * 2.0**-9

# Attention of the kernel; in bf16 a key that is rounded to its neighbour weighs less than 2e-3.
# Keys are normed and rotated in float32, then rounded to their own width.
ATTENTION_F32, ATTENTION_BF16 = 1e-5, 2e-3
KEYS_F32, KEYS_BF16 = 1e-5, 2**-8

# A float32 norm or rotation: a sum of at most 256 squares, a root, a sine; values up to 500 turns.
NORM_F32 = 1e-5

# A handful of float32 roundings, of 2^-24 each, of numbers of order 1.
ROUNDING_F32 = 1e-6

# Gumbel noise: two libraries' float32 logarithms differ in the last place, of values near 0 too.
NOISE_RELATIVE = 3e-6

# The speech decoder as Core ML's operations against the vocoder: AUDIO_GPU_F32's reasons.
COREML_AUDIO_F32 = 1e-4

# Core ML's keys and values are always float16; in half precision, everything else is, too.
COREML_HIDDEN_F32, COREML_HIDDEN_F16 = 2e-3, 2e-2

# float32 samples of one file: MP3 is decoded in blocks of another length by the other reader, so
# the last bit of some samples differs.
MP3_F32 = 1e-7

# int16 steps of a stream's samples, alone and beside others: sums may round differently.
PCM_STEPS = 1

# Sums of 88 losses, each from float32 logits of order 10; and the relative error of a mean.
LOSS_SUM_F32 = 88 * 10 * 2**-23
LOSS_F32 = 1e-5

# A weight after one step of Adam at 1e-3: it is the same if the gradient's sign is.
ADAM_STEP_F32 = 1e-5

# Relative errors of the committed precision table: two float32 implementations agree to 1e-5; int8
# on the kernel has the errors of int8 in float32 arithmetic, within a twentieth.
PRECISION_F32, PRECISION_SHARE = 1e-5, 0.05

# Arithmetic in float64, and figures that a report has rounded to six and to four digits.
ROUNDING_F64 = 1e-9
SIX_DIGITS, FOUR_DIGITS = 1e-6, 1e-4

# Statistics of random weights: of at least 10,000 values, and of a few hundred.
MANY_WEIGHTS, FEW_WEIGHTS = 0.02, 0.05

# Moments of 400,000 normal numbers: six standard errors of a mean.
NORMAL_MOMENTS = 0.01

# The relative difference between the spreads of two random tensors of at least 512 values; and the
# last digits of the distance of two float32 logits of order 10.
DRAWN_SPREAD, LOGIT_DISTANCE = 0.2, 2e-6

# Draws of 10,000 exponential gaps: three standard errors of their mean (1 %) and spread (1.4 %);
# and of the variance of 500 counts (6 %).
GAP_MEAN, GAP_SPREAD, COUNT_VARIANCE = 0.03, 0.05, 0.15

# Published parameter counts are in whole millions.
PUBLISHED_COUNT = 0.01

# Samples of the sound of silent frames of the demonstration voice.
SILENCE = 5e-3

# float32: the distance of frames from themselves; relative, in codebooks of another scale.
SAME_DISTANCE = 1e-3

# The mean distance of a sentence's frames from the reference's, relative to that of two different
# sounds: the demonstration voice has 0.34 to 0.38; and the least of another sentence.
SENTENCE_DISTANCE, ANOTHER_SENTENCE = 0.45, 0.6

# Exact arithmetic in float32 or float64, up to its last digits.
NEARLY_EXACT = 1e-5

# flite's values: the end of the last phoneme in seconds, beside rows of 5 ms; the energy of sound
# whose noise is drawn anew.
# What the demonstration voice's codec encoder hears in the voice's own speech: the share of frames
# whose sound is nearer than half the distance of two different sounds, and the pitch.
HEARD_SOUNDS, HEARD_PITCH_SEMITONES = 0.7, 0.7
PITCH_CODES = 0.02  # a frame's pitch is a number of thirds of periods
FUNDAMENTAL_RADIANS = 1.5  # a phase of the fundamental from that of another recording
PULSES = 1e-6  # places of pulses, in periods, and their distances, in samples
FLITE_END_SECONDS, FLITE_ENERGY_SHARE = 0.01, 0.05

# The pitch of natural frames, counted in thirds of periods, 4.2 Hz each, with one of four slopes:
# the mean and the largest error in Hz. Pulses of a steady pitch: the error of their number, the
# share by which a gap may differ if it corrects a third, and the samples between gap and period.
FRAME_PITCH_MEAN_HZ, FRAME_PITCH_HZ = 0.3, 9
NUM_PULSES, PULSE_GAP_SHARE, PULSE_PERIOD_SAMPLES = 2, 0.12, 20

# The loss of 31 dimensions for the fundamentals of 252 pitch codes; the loss of three small
# codebooks for envelopes; decibels in bands of 400 Hz of our sound from flite's (a fault: 15).
FUNDAMENTAL, ENVELOPE_SHARE, BAND_DECIBELS = 0.1, 0.3, 4

# The least value of the loudest sample in a sentence of a natural voice.
LOUD_SAMPLE = 0.3

# Levels of known sounds, in decibels and LUFS, peaks and offsets; shares of a glide's pitch; and
# semitones of a melody an octave up that has half the range.
LEVEL_DECIBELS, LEVEL_LUFS, LEVEL_SAMPLE = 0.1, 0.2, 1e-3
GLIDE_SHARE, OCTAVE_SEMITONES = 0.03, 1.5

# The mean distance of samples from flite's over the mean of flite's: the vocoder has 0.26
# in sentences that it has not learned; silence would have 1.
DECODED_WAVE = 0.4

# Seconds: a word's time on a pipeline's clock; a text's end, whose last word its letters estimate.
WORD_SECONDS, LAST_WORD_SECONDS = 0.1, 0.15

# A number of samples is a rounded duration.
ROUNDED_COUNT = 0.5

# Pauses. Seconds between two sounds: each is found by blocks of 10 ms, and fades for some ms; with
# a voice's own attack and decay up to 60 ms at either side. Samples by which the silence at an edge
# is longer than the pause: zeros of the sound beside it. Decibels of a part's level against the
# same text's in another speech.
PAUSED_SECONDS, PAUSED_SAMPLES, PART_LEVEL_DB = 0.12, 50, 2.0
# Seconds between two hums, and of the whole: a block of silence, and the resampler's filter.
HUM_PAUSE_SECONDS, HUMS_SECONDS = 0.012, 0.02
# Seconds by which a pause before a word moves it: the alignment has steps of 10 ms.
MOVED_WORD_SECONDS = 0.011
# Seconds between a word and the pause beside it, which is exact: a millisecond.
WORD_AT_PAUSE_SECONDS = 0.001

# Speed: shares of a pitch and of a tone's peak; the steepest slope between two samples, as a
# multiple of the original's (segments meet to half a sample; a click is tens of times as steep).
PITCH_KEPT, TONE_PEAK, SMOOTHNESS = 0.01, 0.02, 1.2

# The level that a limiter allows, with a rounding; the change of its gain between two samples, if
# the whole change takes 5 ms.
LIMITED, GAIN_STEP = 0.99 + 1e-6, 0.01

# The mean of a speech: a tenth of the demonstration voice's own offset, 0.006.
OFFSET = 6e-4
# A tone of 424 Hz at -20 dBFS behind a high-pass of 20 Hz: it is 20 / 424 radians early.
HIGH_PASSED_TONE = 6e-3
# Samples of the demonstration voice's hiss while they fade in; its tick was seven times as high.
TICK = 2e-3

# Decibels of the loudest sample of a speech or a hum after a change of speed or sample rate.
PEAK_DB = 1.0
# Loudness units: the error that EBU Tech 3341 allows a meter.
LOUDNESS_LU = 0.1
# Seconds that a lossy codec pads a file with.
CODEC_PADDING = 0.2

# float32 samples in [-1, 1]: soxr's HQ against the tone at the new rate; chunks against the whole.
RESAMPLED_TONE, RESAMPLED_CHUNKS_F32 = 1e-3, 1e-6

# A pitch by the highest line of a spectrum; a pace learned in five sentences.
PITCH, PACE = 0.02, 0.05

# The web page: a piece begins on a sample of 24 kHz (in samples), behind the piece before it, and
# the page shows figures to a hundredth of a second.
PAGE_ON_A_SAMPLE, PAGE_BEHIND_THE_LAST, PAGE_SECONDS = 1e-4, 1e-3, 0.01

# CPU seconds that a run reports and that the system counts: roundings, and ends of processes.
CPU_SECONDS = 1

# Share of the demonstration voice's words that pocketsphinx hears wrong, misses or adds. It is weak
# on synthetic voices: for the reference codes of this voice it gets 8 % wrong, and for a voice that
# rambles nearly all. The few sentences of the default run scatter more.
WORD_ERROR_RATE, WORD_ERROR_RATE_OF_FEW = 0.15, 0.35


# ---- multiples of these, and limits of single tests ----------------------------------------------

# Samples of a vocoder whose last layer is 30 times as loud: thirty times their roundings.
LOUD_AUDIO_F32 = 30 * AUDIO_F32
# The snake's formula against float64; its own check at first use allows a tenth of this.
SNAKE_F64 = 10 * SNAKE_F32
# Packed hidden states of the trainer's network, relative to the largest: sums in another order.
TRAINER_HIDDEN = 5 * LOGITS_F32
# int8: half a step, the largest error of rounding.
HALF_A_STEP = 0.5
# The same for the largest value if the scale is rounded, too: to bf16, or to float32.
INT8_GROUP_SLACK, INT8_ROW_SLACK = 1 + 127 / 128, 1.0002
FITTED_SLACK = 1 + 1e-5  # squared errors, which are compared in float32
# Squared errors of 4 bits: at most this part of what the scale of the largest magnitude costs, and
# of the squared weights, if these are normally distributed.
FITTED_OF_PLAIN, FITTED_OF_WEIGHTS = {6: 0.98, 4: 0.85}, {6: 0.0006, 4: 0.01}
SCALE_BF16 = 1 / 256  # what rounding a scale to bf16 changes it by, at most
# Seconds by which half of the words of a voice without noise may be misplaced: two hops.
WORD_ON_A_HOP = 0.02
# The same for every word, because a last "t" begins as silently as a pause; and for a speech that
# was cut off, because its last words are placed by the expected pace.
WORD_AT_A_STOP, WORD_OF_A_BEGINNING = 0.12, 0.2
# Seconds for a word at half the speed: twice WORD_P50.
WORD_AT_HALF_SPEED = 0.16
# Decibels and logarithms of a hop, whose float32 sums depend on the chunks.
LOUDNESS_F32 = 1e-4
# Seconds without a word at the end of a speech that was cut off: a pause, and half a word.
SILENT_END = 0.5
# Seconds for a word of the demonstration voice, whose sounds last whole frames of 0.08 s: the
# limits for half of the words, and for 95 of 100.
WORD_P50, WORD_P95 = 0.08, 0.25
# The fourth moment of 400,000 normal numbers (its own deviation is 0.016).
NORMAL_KURTOSIS = 0.1
# The loudness that a lossy format changes, relative to the original's.
LOSSY_LOUDNESS = 0.1
# Bits of entropy by which an utterance of one repeated period may seem to fall.
HEALTHY_ENTROPY_DROP = 0.1


# The sum of an emulated frame's stages, relative to the whole: medians of a few frames, on cores
# that other programs use, too. A stage that is counted twice is off by more.
STAGE_SUM = 0.2


# The least memory of a server in the last two of ten minutes of attacks, relative to the first two.
SOAK_MEMORY = 1.05

# Gaps for each speech in half a minute of attacks on a shared machine: 0 to 0.06 were seen on two
# virtual cores, and none in ten minutes. It shows a server that clients stop, not one that they
# delay: threads that kept Python's lock for 5 ms gave 0.09, which only the ten minutes show.
SHORT_SOAK_GAPS = 0.1


def nearly(expected: Any) -> Any:
    """Return an object that equals `expected` up to roundings of float64."""
    return pytest.approx(expected, rel=ROUNDING_F64, abs=ROUNDING_F64)


# The power of the watermark relative to that of the speech: 27 dB below it. The mark is meant to be
# 28.5 dB below the speech of a moment before, which may have been louder.
MARK_SHARE = 10**-2.7

# Seconds by which the beginning and the end of a mark may be off: half of the detector's windows.
MARK_EDGE_S = 2.5

# Seconds by which a dialect's times may be off: they are whole milliseconds, so a time is off by
# half of one, and the difference of two by one.
ROUNDED_S, ROUNDED_STEP_S = 0.0005, 0.0011

# The size of an mp3 relative to that of its bit rate: frames are whole, and the encoder adds some.
MP3_BIT_RATE = 0.1

# Seconds by which a dialect's first audio may come later than our own WebSocket's, at best.
DIALECT_FIRST_AUDIO_S = 0.002

# By how much a planted drift is missed, and what a drift of one figure moves the others by, in
# percent, semitones and dB; and what silence around a speech moves its rate by, as a share, and its
# loudness, in dB: the edges of speech are found to one hop of 10 ms in some seconds.
PLANTED_DRIFT = {"rate_percent": 2.0, "pitch_semitones": 0.1, "loudness_db": 0.1}
DRIFT_OF_OTHERS, EDGE_OF_SPEECH, EDGE_OF_SPEECH_DB = 0.3, 0.02, 0.1
