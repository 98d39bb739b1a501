// Convolutions along time as products with packed weights.
//
// Activations are rows of channels, padded with arbitrary numbers to a multiple of 16: row t *
// num_streams + b is step t of stream b. So a tap reads a window of rows, and streams share the
// weights as steps do. A row's sums are added in one order, which does not depend on the other
// rows, the number of workers or the instruction set.
//
// The layout of packed weights is the same for every instruction set, so files can hold them.
// Weights in float16 are widened when they are read; sums are float32.
#pragma once
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cpu_vocoder.h"
#include "pool.h"
#include "transforms.h"
#include "vectors.h"

namespace qwen_tts {

constexpr int kChannelBlock = 16;
constexpr int kWidth = 2 * kChannelBlock;  // columns of a packed block
// Terms of a running sum, and columns whose weights are multiplied by all rows of a panel at once.
// With 128 the error equals that of MKL's products; with 64 it is two thirds, at 4 % more time.
constexpr int kSumTerms = 64;
constexpr int kPanelRows = 96;
constexpr int kPanelTiles = 96;
constexpr size_t kPointBytes = size_t{384} << 10;  // of the points that one worker keeps
// Every worker reads a matrix of up to this size, for its own rows; each block of a larger one is
// read by one worker.
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

// With more than kFastBytes of weights, reading the transformed weights would take longer than the
// transform saves; with fewer than kFastChannels channels, computing would take longer.
constexpr size_t kFastBytes = size_t{12} << 20;
constexpr int kFastChannels = 64;

struct Convolution {
  Transform transform;
  int num_taps, in_channels, out_channels, stride, dilation, history_at;
  std::vector<float> bias, frequency, amplitude;  // padded; frequency empty: no activation
  // Columns are [stride][padded out_channels]; if gated, 16 gates and 16 ups alternate.
  bool is_gated = false;
  bool is_half = false;             // weights are float16, not float32
  const uint8_t* packed = nullptr;  // [block][product][in_channels][pitch of the block]

  int history_rows() const { return (num_taps - 1) * dilation; }
  size_t in_size() const { return padded(in_channels); }
  size_t out_size() const { return padded(out_channels); }
  int num_columns() const {
    return stride > 1 ? stride * int(out_size()) : (out_channels + kLanes - 1) / kLanes * kLanes;
  }
  int num_blocks() const { return (num_columns() + kWidth - 1) / kWidth; }
  // The columns of a block that are computed, and those that are stored.
  int width(int block) const { return std::min(kWidth, num_columns() - block * kWidth); }
  int pitch(int block) const { return padded(width(block)); }
  int num_products() const { return products_of(transform, num_taps); }
  size_t depth() const { return size_t(num_products()) * in_channels; }
  size_t weight_bytes() const { return is_half ? 2 : 4; }
  size_t num_weights() const { return depth() * padded(num_columns()); }
  // The number of tiles whose points a worker keeps at once.
  int panel_tiles() const {
    const size_t per_tile = num_products() * in_size() * 4;
    const int tall = int(kPointBytes / per_tile) / kTallRows;
    return std::clamp(tall * kTallRows, kTallRows, kPanelTiles);
  }
  const uint8_t* block(int index) const {
    return packed + depth() * index * kWidth * weight_bytes();
  }

  struct Column {
    int phase, channel;
  };
  Column column(int index) const {
    if (is_gated)
      return {index / kChannelBlock % 2, index / kWidth * kChannelBlock + index % kChannelBlock};
    return {index / int(out_size()), index % int(out_size())};
  }
};

// The choice depends on the shape alone, so that equal cuts give equal bits.
inline Transform transform_of(const ConvolutionSource& s) {
  const size_t bytes = size_t(s.num_taps) * s.in_channels * s.stride * s.out_channels * 4;
  if (std::min(s.in_channels, s.out_channels) < kFastChannels || bytes > kFastBytes)
    return Transform::kNone;
  if (s.num_taps == TwoTaps::kTaps) return Transform::kTwoTaps;
  return s.num_taps == SevenTaps::kTaps ? Transform::kSevenTaps : Transform::kNone;
}

inline Convolution make_convolution(const ConvolutionSource& s, bool is_direct, bool is_gated) {
  Convolution c;
  c.is_gated = is_gated;
  c.transform = is_direct ? Transform::kNone : transform_of(s);
  c.num_taps = s.num_taps, c.in_channels = s.in_channels, c.out_channels = s.out_channels;
  c.stride = s.stride, c.dilation = s.dilation, c.history_at = s.history;
  // A depthwise convolution has as many output channels as input channels.
  c.bias = padded_copy(s.bias, s.out_channels ? s.out_channels : s.in_channels);
  if (s.frequency) {
    c.frequency = padded_copy(s.frequency, s.in_channels);
    c.amplitude = padded_copy(s.amplitude, s.in_channels);
  }
  return c;
}

// Transforms and packs the weights of a block; `of_taps` is scratch [num_taps + num_products].
inline void pack_block(const Convolution& c, const float* taps, int block, double* of_taps,
                       float* to) {
  const int pitch = c.pitch(block);
  const size_t tap_size = size_t(c.in_channels) * c.stride * c.out_channels;
  double* products = of_taps + c.num_taps;
  for (int row = 0; row < c.in_channels; ++row)
    for (int i = 0; i < pitch; ++i) {
      const auto at = c.column(block * kWidth + i);
      const size_t from = (size_t(row) * c.stride + at.phase) * c.out_channels + at.channel;
      for (int tap = 0; tap < c.num_taps; ++tap)
        of_taps[tap] = at.channel < c.out_channels ? taps[tap * tap_size + from] : 0;
      transform_weights(c.transform, of_taps, c.num_taps, products);
      for (int p = 0; p < c.num_products(); ++p)
        to[(size_t(p) * c.in_channels + row) * pitch + i] = float(products[p]);
    }
}

template <bool kIsHalf>
Floats load_weights(const uint8_t* from) {
  if constexpr (kIsHalf) return load_half(from);
  return load_floats(from);
}

// Computes kVectors vectors of sums [kRows][kWidth] = x times weights [num_cols][pitch], or adds to
// sums.
template <bool kIsHalf, int kRows, int kVectors>
void multiply_tile(const float* x, size_t stride, const uint8_t* weights, size_t pitch_bytes,
                   int num_cols, float* sums, bool adds) {
  Floats sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = zero_floats();
  for (int col = 0; col < num_cols; ++col, weights += pitch_bytes, ++x) {
    Floats of_column[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v)
      of_column[v] = load_weights<kIsHalf>(weights + v * kLanes * (kIsHalf ? 2 : 4));
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

using Tile = void (*)(const float*, size_t, const uint8_t*, size_t, int, float*, bool);
template <bool kIsHalf, int kVectors, int... kRows>
constexpr std::array<Tile, kTallRows> tiles_of(std::integer_sequence<int, kRows...>) {
  return {multiply_tile<kIsHalf, kRows + 1, kVectors>...};
}
using Heights = std::make_integer_sequence<int, kTallRows>;
constexpr std::array<Tile, kTallRows> kTiles[2][2] = {
    {tiles_of<false, 1>(Heights()), tiles_of<false, 2>(Heights())},
    {tiles_of<true, 1>(Heights()), tiles_of<true, 2>(Heights())}};

// Multiplies any number of rows of x by all columns of one product: sums [num_rows][kWidth].
// Returns the weights of the next product.
inline const uint8_t* multiply_rows(const Convolution& c, const float* x, int num_rows,
                                    const uint8_t* weights, int block, float* sums, bool adds) {
  const int width = c.width(block);
  const size_t stride = c.in_size(), pitch_bytes = c.pitch(block) * c.weight_bytes();
  for (int col = 0; col < c.in_channels; col += kSumTerms) {
    const int num_cols = std::min(kSumTerms, c.in_channels - col);
    for (int v = 0; v < width; v += 2 * kLanes) {
      const auto& tiles = kTiles[c.is_half][width - v > kLanes];
      for (int row = 0; row < num_rows;) {
        const int left = num_rows - row;
        // The last two tiles share the remaining rows, because one of few rows waits for its sums.
        const int size = left >= 2 * kTallRows ? kTallRows
                         : left > kTallRows    ? (left + 1) / 2
                                               : left;
        tiles[size - 1](x + row * stride + col, stride, weights + v * c.weight_bytes(), pitch_bytes,
                        num_cols, sums + row * kWidth + v, adds || col);
        row += size;
      }
    }
    weights += num_cols * pitch_bytes;
  }
  return weights;
}

// One worker's part of a convolution: all blocks for some rows, or all rows for some blocks.
struct Part {
  bool has_all_blocks;
  Share rows, blocks;
};
inline Part part_of(const Convolution& c, int num_rows, int worker, int num_workers) {
  const int num_tiles = (num_rows + kTallRows - 1) / kTallRows;
  if (c.num_weights() * c.weight_bytes() > kSharedBytes || num_tiles < 4 * num_workers)
    return {false, {0, num_rows}, share_of(c.num_blocks(), worker, num_workers)};
  const Share tiles = share_of(num_tiles, worker, num_workers);
  return {true,
          {tiles.first * kTallRows, std::min(num_rows, tiles.end * kTallRows)},
          {0, c.num_blocks()}};
}

// Rows first, first + step, ..
struct Rows {
  int first, count, step;
  int at(int index) const { return first + index * step; }
};

// Calls use(block, rows, sums) with the sums [row][kWidth] of a block for some rows. The taps read
// rows of x that are `gap` apart; `sums` is scratch [kPanelRows][kWidth].
template <class Use>
void convolve(const Convolution& c, const Part& part, const float* x, int gap, float* sums,
              Use use) {
  for (int first = part.rows.first; first < part.rows.end; first += kPanelRows) {
    const int num_rows = std::min(kPanelRows, part.rows.end - first);
    for (int block = part.blocks.first; block < part.blocks.end; ++block) {
      const uint8_t* weights = c.block(block);
      for (int tap = 0; tap < c.num_taps; ++tap)
        weights = multiply_rows(c, x + (first + size_t(tap) * gap) * c.in_size(), num_rows, weights,
                                block, sums, tap > 0);
      use(block, Rows{first, num_rows, 1}, sums);
    }
  }
}

// The tiles of a transform: each has kOutputs rows that are `gap` apart. They begin with the chunk,
// so other streams do not move them; the last ones of a chunk may extend past it.
template <class T>
struct Tiling {
  int gap, num_rows;

  int count() const {
    const int span = gap * T::kOutputs;
    return num_rows / span * gap + std::min(gap, num_rows % span);
  }
  int first_row(int tile) const { return tile / gap * gap * T::kOutputs + tile % gap; }
  Rows rows(int tile) const {
    const int first = first_row(tile);
    return {first, std::min(T::kOutputs, (num_rows - first + gap - 1) / gap), gap};
  }
};

// Evaluates some tiles and channels of the inputs at the points of a transform: points
// [product][tile][in_size], where a product takes `plane` floats.
template <class T>
void transform_inputs(const Convolution& c, const Tiling<T>& tiling, const float* x, Share tiles,
                      Share channels, float* points, size_t plane) {
  constexpr int kInputs = T::kOutputs + T::kTaps - 1;
  const size_t stride = c.in_size();
  for (int tile = tiles.first; tile < tiles.end; ++tile, points += stride) {
    const int first = tiling.first_row(tile), past = tiling.num_rows + (T::kTaps - 1) * tiling.gap;
    const auto transform = [&](auto row) {
      for (int channel = channels.first; channel < channels.end; channel += kLanes) {
        Floats in[kInputs], out[T::kProducts];
        visit_each<kInputs>([&](auto i) { in[i] = row(i, channel); });
        T::inputs(in, out);
        visit_each<T::kProducts>([&](auto p) { store(points + p * plane + channel, out[p]); });
      }
    };
    const float* from = x + first * stride;
    const size_t step = tiling.gap * stride;
    if (first + (kInputs - 1) * tiling.gap < past) {
      transform([&](int i, int channel) { return load(from + i * step + channel); });
    } else {  // the rows after the chunk are zeros
      transform([&](int i, int channel) {
        return first + i * tiling.gap < past ? load(from + i * step + channel) : zero_floats();
      });
    }
  }
}

// Calls use(block, rows, sums) as `convolve` does, from the points of some tiles; `products` is
// scratch [product][tile][kWidth].
template <class T, class Use>
void convolve_points(const Convolution& c, const Tiling<T>& tiling, Share tiles, Share blocks,
                     const float* points, size_t plane, float* products, Use use) {
  const int num_tiles = tiles.end - tiles.first;
  const size_t size = size_t(num_tiles) * kWidth;
  for (int block = blocks.first; block < blocks.end; ++block) {
    const uint8_t* weights = c.block(block);
    for (int p = 0; p < T::kProducts; ++p)
      weights = multiply_rows(c, points + p * plane, num_tiles, weights, block, products + p * size,
                              false);
    for (int i = 0; i < num_tiles; ++i) {
      float sums[T::kOutputs * kWidth];
      for (int v = 0; v < c.width(block); v += kLanes) {
        Floats in[T::kProducts], out[T::kOutputs];
        visit_each<T::kProducts>(
            [&](auto p) { in[p] = load(products + p * size + i * kWidth + v); });
        T::outputs(in, out);
        visit_each<T::kOutputs>([&](auto j) { store(sums + j * kWidth + v, out[j]); });
      }
      use(block, tiling.rows(tiles.first + i), sums);
    }
  }
}

}  // namespace qwen_tts
