// Convolutions along time as products with packed weights.
//
// Activations are rows of channels, padded with whatever to a multiple of 16: row t * num_streams +
// b is step t of stream b. So what a tap reads is a window of rows, and streams share the weights
// like steps. A row's sums are added in one order, whatever rows, workers and instruction sets
// there are.
#pragma once
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cpu_vocoder.h"
#include "pool.h"
#include "vectors.h"

namespace qwen_tts {

constexpr int kChannelBlock = 16;
constexpr int kWidth = 2 * kLanes;  // columns of a packed block
// Terms of a running sum, and so the columns whose weights meet all rows of a panel at once. With
// 128 the error is that of MKL's products, with 64 two thirds of it, and 4 % slower.
constexpr int kSumTerms = 64;
constexpr int kPanelRows = 96;
// Weights up to this size are read by every worker for its own rows, larger ones by one worker
// each.
constexpr size_t kSharedBytes = size_t{3} << 20;

inline int padded(int channels) {
  return (channels + kChannelBlock - 1) / kChannelBlock * kChannelBlock;
}
inline std::vector<float> padded_copy(const float* values, int channels, int count = 1) {
  std::vector<float> copy(size_t(count) * padded(channels));
  for (int i = 0; values && i < count; ++i)
    std::copy_n(values + size_t(i) * channels, channels,
                copy.data() + size_t(i) * padded(channels));
  return copy;
}

struct Convolution {
  int num_taps, in_channels, out_channels, stride, dilation, history_at;
  std::vector<float> bias, frequency, amplitude;  // padded; frequency: empty without an activation
  // Columns are [stride][padded out_channels]; or gates and ups by turns, a vector of each.
  bool is_gated = false;
  const float* packed = nullptr;  // [block][tap][in_channels][width of the block]

  int history_rows() const { return (num_taps - 1) * dilation; }
  size_t in_size() const { return padded(in_channels); }
  size_t out_size() const { return padded(out_channels); }
  int num_columns() const {
    return stride > 1 ? stride * int(out_size()) : (out_channels + kLanes - 1) / kLanes * kLanes;
  }
  int num_blocks() const { return (num_columns() + kWidth - 1) / kWidth; }
  int width(int block) const { return std::min(kWidth, num_columns() - block * kWidth); }
  size_t depth() const { return size_t(num_taps) * in_channels; }
  size_t num_weights() const { return depth() * num_columns(); }
  const float* block(int index) const { return packed + depth() * index * kWidth; }

  struct Column {
    int phase, channel;
  };
  Column column(int index) const {
    if (is_gated) return {index / kLanes % 2, index / kWidth * kLanes + index % kLanes};
    return {index / int(out_size()), index % int(out_size())};
  }
};

inline Convolution make_convolution(const ConvolutionSource& s) {
  Convolution c;
  c.num_taps = s.num_taps, c.in_channels = s.in_channels, c.out_channels = s.out_channels;
  c.stride = s.stride, c.dilation = s.dilation, c.history_at = s.history;
  // A depthwise one has as many channels behind it as in front.
  c.bias = padded_copy(s.bias, s.out_channels ? s.out_channels : s.in_channels);
  if (s.frequency) {
    c.frequency = padded_copy(s.frequency, s.in_channels);
    c.amplitude = padded_copy(s.amplitude, s.in_channels);
  }
  return c;
}

inline void pack_block(const Convolution& c, const float* taps, int block, float* to) {
  const int width = c.width(block);
  for (size_t row = 0; row < c.depth(); ++row)
    for (int i = 0; i < width; ++i) {
      const auto at = c.column(block * kWidth + i);
      const size_t from = (row * c.stride + at.phase) * c.out_channels + at.channel;
      *to++ = at.channel < c.out_channels ? taps[from] : 0.0f;
    }
}

// sums [kRows][kWidth] = kRows rows of x times weights [num_cols][kVectors * kLanes], or += these.
template <int kRows, int kVectors>
void multiply_tile(const float* x, size_t stride, const float* weights, int num_cols, float* sums,
                   bool adds) {
  Floats sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = zero_floats();
  for (int col = 0; col < num_cols; ++col, weights += kVectors * kLanes, ++x) {
    Floats of_column[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) of_column[v] = load(weights + v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const Floats each = broadcast(x[r * stride]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(of_column[v], each, sum[r][v]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      float* to = sums + r * kWidth + v * kLanes;
      store(to, adds ? load(to) + sum[r][v] : sum[r][v]);
    }
}

using Tile = void (*)(const float*, size_t, const float*, int, float*, bool);
template <int kVectors, int... kRows>
constexpr std::array<Tile, kTallRows> tiles_of(std::integer_sequence<int, kRows...>) {
  return {multiply_tile<kRows + 1, kVectors>...};
}
constexpr std::array<Tile, kTallRows> kTiles[] = {
    tiles_of<1>(std::make_integer_sequence<int, kTallRows>()),
    tiles_of<2>(std::make_integer_sequence<int, kTallRows>())};

// Any number of rows: sums [num_rows][kWidth].
inline void multiply_rows(const float* x, size_t stride, int num_rows, const float* weights,
                          int num_cols, int width, float* sums, bool adds) {
  for (int row = 0; row < num_rows;) {
    const int left = num_rows - row;
    // The last two tiles share what is left: a low one waits for its sums.
    const int size = left >= 2 * kTallRows ? kTallRows : left > kTallRows ? (left + 1) / 2 : left;
    kTiles[width / kLanes - 1][size - 1](x + row * stride, stride, weights, num_cols,
                                         sums + row * kWidth, adds);
    row += size;
  }
}

// The part of a convolution that one worker computes: all blocks for some rows, or the reverse.
struct Part {
  Share rows, blocks;
};
inline Part part_of(const Convolution& c, int num_rows, int worker, int num_workers) {
  const int num_tiles = (num_rows + kTallRows - 1) / kTallRows;
  if (c.num_weights() * 4 > kSharedBytes || num_tiles < 4 * num_workers)
    return {{0, num_rows}, share_of(c.num_blocks(), worker, num_workers)};
  const Share tiles = share_of(num_tiles, worker, num_workers);
  return {{tiles.first * kTallRows, std::min(num_rows, tiles.end * kTallRows)},
          {0, c.num_blocks()}};
}

// use(block, rows, sums) receives the sums [row][kWidth] of a block for some rows. The taps read
// rows of x that are tap_rows apart; `sums` is scratch [kPanelRows][kWidth].
template <class Use>
void convolve(const Convolution& c, const Part& part, const float* x, int tap_rows, float* sums,
              Use use) {
  const size_t stride = c.in_size();
  for (int first = part.rows.first; first < part.rows.end; first += kPanelRows) {
    const int num_rows = std::min(kPanelRows, part.rows.end - first);
    for (int block = part.blocks.first; block < part.blocks.end; ++block) {
      const float* weights = c.block(block);
      for (int tap = 0; tap < c.num_taps; ++tap)
        for (int col = 0; col < c.in_channels; col += kSumTerms) {
          const int num_cols = std::min(kSumTerms, c.in_channels - col);
          multiply_rows(x + (first + size_t(tap) * tap_rows) * stride + col, stride, num_rows,
                        weights, num_cols, c.width(block), sums, tap || col);
          weights += size_t(num_cols) * c.width(block);
        }
      use(block, Share{first, first + num_rows}, sums);
    }
  }
}

}  // namespace qwen_tts
