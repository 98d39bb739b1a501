"""Every tolerance of the suite, with where it comes from; loosening one changes this file."""

# float32 logits at toy size, two correct implementations: products of some 300 terms of order 1,
# summed in another order, through at most 5 layers. The official code against an independent one
# gave 7e-6; a wrong formula moves logits by 1e-2 and more.
LOGITS_F32 = 2e-5

# float32 prompt rows: one matrix product and one addition.
PROMPT_F32 = 1e-6

# float32 samples in [-1, 1]: official against itself, split another way, differs by 2.5e-6.
AUDIO_F32 = 1e-5

# float32 samples, the same layers on the same CPU beside another number of streams: 6e-8 was seen.
AUDIO_SAME_CPU_F32 = 1e-6

# float32 samples, GPU against CPU: as AUDIO_F32, but in products whose terms are summed in blocks,
# some sixty layers deep. A layer too few or a state too old is off by 1e-2 and more.
AUDIO_GPU_F32 = 1e-4

# float64 samples and vocoder states (values up to 10), summed in two orders: 7e-15. One frame of
# context too few moves the state by 5e-9.
AUDIO_F64 = 1e-13

# 16-bit samples: half a step of rounding on each side, and one step where a float sum tips over.
PCM16 = 1.5 / 32768

# Core ML's models at the released shapes, of the largest of what is expected: every result is
# rounded to float16; the speech decoder's samples are float32, for AUDIO_GPU_F32's reasons.
COREML_RELEASED_F16, COREML_RELEASED_AUDIO = 2e-2, 1e-4

# Decibels of a float16 speech decoder's noise, which another CPU's roundings move a little.
COREML_NOISE_DB = 0.5

# float32 x-vector: seven layers of some 1500 terms, pooled over frames. The official code against
# ours gives 2e-7; a window one sample too short (symmetric, not periodic) moves it by 1e-4.
X_VECTOR_F32 = 1e-5

# float32 logits, the kernel or the graphs against the plain decoder: sums of at most 2080 products
# in another order. The error grows as sqrt(n) roundings of 2^-24 relative to the sum of magnitudes,
# 1e-6 for these sizes, times the handful of layers on the path.
KERNEL_LOGITS_F32 = 1e-4

# float32 samples of SNAC, in chunks against the whole: convolutions over windows of other lengths,
# sums of at most some hundred products of order 1, so some hundred roundings of 6e-8.
SNAC_CHUNKS_F32 = 1e-5
