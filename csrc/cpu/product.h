// Matrices times a few rows of activations.
//
// A sum runs over columns in their order, in one lane. It does not depend on the number of rows, of
// workers, or of vectors at once: a stream's codes have the same bits alone and beside others.
#pragma once
#include <algorithm>
#include <vector>

#include "matrix.h"
#include "vectors.h"

namespace qwen_tts {

// The number of inputs whose sums fit in registers together. Four reach the peak of a Zen 4 in bf16
// and in int8; six and eight are slower there, because registers run out.
constexpr int kTileRows = 4;

// Activations in the layout that products read: tiles of rows, within which columns come one after
// another, with the values of the rows adjacent.
class Inputs {
 public:
  // Allocates memory for num_rows rows of num_cols columns.
  void reserve(int num_rows, int num_cols) {
    const size_t padded = size_t(num_cols + kGroup - 1) / kGroup * kGroup;
    words_.resize(num_rows * padded);
    scales_.resize(num_rows * padded / kGroup);
    row_.resize(padded);
  }

  // Sets the inputs of a matrix; fill(row, to) writes the num_cols values of a row.
  template <class Fill>
  void set(const Matrix& matrix, int num_rows, Fill fill) {
    num_rows_ = num_rows, num_cols_ = matrix.num_cols, is_integer_ = matrix.is_integer();
    num_words_ = is_integer_ ? matrix.num_groups() * kGroup / 2 : (num_cols_ + 1) / 2 * 2;
    num_groups_ = is_integer_ ? matrix.num_groups() : 0;
    for (int first = 0; first < num_rows;) {
      const int size = std::min(kTileRows, num_rows - first);
      for (int b = 0; b < size; ++b) {
        fill(first + b, row_.data());
        const size_t tile = size_t(first) * num_words_;
        if (is_integer_) {
          narrow(words_.data() + tile + b, scales_.data() + size_t(first) * num_groups_ + b, size);
        } else {
          std::fill(row_.data() + num_cols_, row_.data() + num_words_, 0.0f);
          auto* to = reinterpret_cast<float*>(words_.data()) + tile + b;
          for (int i = 0; i < num_words_; ++i) to[size_t(i) * size] = row_[i];
        }
      }
      first += size;
    }
  }

  int num_rows() const { return num_rows_; }
  const int32_t* words(int first) const { return words_.data() + size_t(first) * num_words_; }
  const float* values(int first) const { return reinterpret_cast<const float*>(words(first)); }
  const float* scales(int first) const { return scales_.data() + size_t(first) * num_groups_; }

 private:
  // Narrows a row to 16-bit integers in pairs of columns, with a scale for each group. The scale is
  // NaN if a number of the group is not finite, so that the row's sums are NaN too.
  void narrow(int32_t* words, float* scales, int stride) {
    std::fill(row_.data() + num_cols_, row_.data() + num_groups_ * kGroup, 0.0f);
    for (int group = 0; group < num_groups_; ++group) {
      const float* from = row_.data() + group * kGroup;
      const float most = largest(from);
      const float inverse = most > 0 && most < INFINITY ? 32767 / most : 0;
      uint32_t rounded[kGroup];
      for (int i = 0; i < kGroup; ++i) {
        const float shifted = from[i] * inverse + 12582912.0f;  // 1.5 * 2^23: rounds to integers
        std::memcpy(rounded + i, &shifted, 4);
      }
      int32_t* to = words + size_t(group) * (kGroup / 2) * stride;
      for (int i = 0; i < kGroup / 2; ++i)
        to[size_t(i) * stride] = int32_t((rounded[2 * i] & 0xffff) | rounded[2 * i + 1] << 16);
      scales[size_t(group) * stride] = most < INFINITY ? most / 32767 : NAN;
    }
  }

  // The largest magnitude of a group; NaN or infinity if the group has one. It compares integers,
  // whose order is that of magnitudes with NaN last: comparisons of floats pass over a NaN.
  static float largest(const float* group) {
    int32_t bits[kGroup], most = 0;
    std::memcpy(bits, group, sizeof bits);
    for (int32_t each : bits) most = std::max(most, each & 0x7fffffff);
    float magnitude;
    std::memcpy(&magnitude, &most, sizeof magnitude);
    return magnitude;
  }

  int num_rows_ = 0, num_cols_ = 0, num_words_ = 0, num_groups_ = 0;
  bool is_integer_ = false;
  std::vector<int32_t> words_;  // float32 bits, or pairs of 16-bit integers
  std::vector<float> scales_, row_;
};

// Each dot_ function multiplies kVectors vectors of a block's rows, from byte `lane` of a stride,
// by kRows inputs, and stores sums [kRows][kBlockRows].

// Computes sum[b][v] += weights(v) * x[b], for one column, or for one pair of 16-bit columns.
template <int kVectors, int kRows, class Sum, class Weights, class X>
inline void add_products(Sum& sum, Weights weights, const X* x) {
  decltype(weights(0)) of_column[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) of_column[v] = weights(v);
#pragma GCC unroll 12
  for (int b = 0; b < kRows; ++b) {
    const auto each = broadcast(x[b]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[b][v] = multiply_add(of_column[v], each, sum[b][v]);
  }
}

template <int kVectors, int kRows>
inline void dot_float32(const uint8_t* block, int num_cols, const float* x, float* sums) {
  Floats sum[kRows][kVectors];
  for (auto& row : sum)
    for (Floats& each : row) each = zero_floats();
  for (int col = 0; col < num_cols; ++col, block += kStrideBytes, x += kRows) {
    prefetch(block);
    add_products<kVectors, kRows>(
        sum, [=](int v) { return load_floats(block + v * kLanes * 4); }, x);
  }
  for (int b = 0; b < kRows; ++b)
    for (int v = 0; v < kVectors; ++v) store(sums + b * kBlockRows + v * kLanes, sum[b][v]);
}

template <int kVectors, int kRows>
inline void dot_bf16(const uint8_t* block, int num_cols, const float* x, float* sums) {
  Floats sum[kRows][kVectors];
  for (auto& row : sum)
    for (Floats& each : row) each = zero_floats();
  for (int col = 0; col < num_cols; col += 2, block += kStrideBytes, x += 2 * kRows) {
    prefetch(block);
    const auto pairs = [=](int v) { return load_words(block + v * kLanes * 4); };
    add_products<kVectors, kRows>(sum, [=](int v) { return lower_bf16(pairs(v)); }, x);
    add_products<kVectors, kRows>(sum, [=](int v) { return upper_bf16(pairs(v)); }, x + kRows);
  }
  for (int b = 0; b < kRows; ++b)
    for (int v = 0; v < kVectors; ++v) store(sums + b * kBlockRows + v * kLanes, sum[b][v]);
}

// The integers of a group are summed exactly: 64 * 127 * 32767 < 2^31.
template <int kVectors, int kRows, bool kHasGroups>
inline void dot_int8(const uint8_t* block, int lane, int num_groups, const int32_t* x,
                     const float* x_scales, float* sums) {
  const uint8_t* row_scales = block + lane;
  if (!kHasGroups) block += kStrideBytes;
  Floats sum[kRows][kVectors];
  for (auto& row : sum)
    for (Floats& each : row) each = zero_floats();
  for (int group = 0; group < num_groups; ++group, x_scales += kRows) {
    const uint8_t* group_scales = block + lane / 2;
    if (kHasGroups) block += 2 * kBlockRows;
    Words exact[kRows][kVectors];
    for (auto& row : exact)
      for (Words& each : row) each = zero_words();
    for (int col = 0; col < kGroup; col += 4, block += kStrideBytes, x += 2 * kRows) {
      prefetch(block);
      const auto four = [=](int v) { return load_words(block + lane + v * kLanes * 4); };
      add_products<kVectors, kRows>(exact, [=](int v) { return bits_of_halves<0, 8>(four(v)); }, x);
      add_products<kVectors, kRows>(
          exact, [=](int v) { return bits_of_halves<8, 8>(four(v)); }, x + kRows);
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Floats scale = kHasGroups ? load_bf16(group_scales + v * kLanes * 2) : broadcast(1.0f);
#pragma GCC unroll 12
      for (int b = 0; b < kRows; ++b)
        sum[b][v] = fma(to_float(exact[b][v]), scale * broadcast(x_scales[b]), sum[b][v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const Floats scale = kHasGroups ? broadcast(1.0f) : load_floats(row_scales + v * kLanes * 4);
    for (int b = 0; b < kRows; ++b) store(sums + b * kBlockRows + v * kLanes, sum[b][v] * scale);
  }
}

// Adds the products of 8 columns of int4, which one stride holds.
template <int kVectors, int kRows>
inline void add_int4(Words (&sum)[kRows][kVectors], const uint8_t* block, const int32_t* x) {
  const auto words = [=](int v) { return load_words(block + v * kLanes * 4); };
  const auto add = [&](auto bits, int pair) {
    add_products<kVectors, kRows>(sum, bits, x + pair * kRows);
  };
  prefetch(block);
  add([=](int v) { return bits_of_halves<0, 4>(words(v)); }, 0);
  add([=](int v) { return bits_of_halves<4, 4>(words(v)); }, 1);
  add([=](int v) { return bits_of_halves<8, 4>(words(v)); }, 2);
  add([=](int v) { return bits_of_halves<12, 4>(words(v)); }, 3);
}

// Adds the products of 16 columns of int6, which three strides hold.
template <int kVectors, int kRows>
inline void add_int6(Words (&sum)[kRows][kVectors], const uint8_t* block, const int32_t* x) {
  const auto words = [=](int v, int i) {
    return load_words(block + i * kStrideBytes + v * kLanes * 4);
  };
  const auto add = [&](auto bits, int pair) {
    add_products<kVectors, kRows>(sum, bits, x + pair * kRows);
  };
  for (int i = 0; i < 3; ++i) {
    prefetch(block + i * kStrideBytes);
    add([=](int v) { return bits_of_halves<0, 6>(words(v, i)); }, 2 * i);
    add([=](int v) { return bits_of_halves<6, 6>(words(v, i)); }, 2 * i + 1);
  }
  add([=](int v) { return joined_bits<14>(words(v, 0), words(v, 1)); }, 6);
  add([=](int v) { return joined_bits<12>(words(v, 2), words(v, 1)); }, 7);
}

// Sums of `dot_int8`'s kind, of columns of 4 or 6 bits of which 32 share a scale.
template <int kVectors, int kRows, int kBits>
inline void dot_small(const uint8_t* block, int lane, int num_groups, const int32_t* x,
                      const float* x_scales, float* sums) {
  constexpr int kScales = kGroup / kSmallGroup;
  constexpr int kColumns = kBits == 4 ? 8 : 16, kBytes = kColumns * kBits / 8 * kBlockRows;
  Floats sum[kRows][kVectors];
  for (auto& row : sum)
    for (Floats& each : row) each = zero_floats();
  for (int group = 0; group < num_groups; ++group, x_scales += kRows) {
    const uint8_t* scales = block + lane / 2;
    block += kScales * 2 * kBlockRows;
    for (int i = 0; i < kScales; ++i, scales += 2 * kBlockRows) {
      Words exact[kRows][kVectors];
      for (auto& row : exact)
        for (Words& each : row) each = zero_words();
      for (int col = 0; col < kSmallGroup; col += kColumns, block += kBytes) {
        if constexpr (kBits == 4) add_int4<kVectors, kRows>(exact, block + lane, x);
        if constexpr (kBits == 6) add_int6<kVectors, kRows>(exact, block + lane, x);
        x += kColumns / 2 * kRows;
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const Floats scale = load_bf16(scales + v * kLanes * 2);
#pragma GCC unroll 12
        for (int b = 0; b < kRows; ++b)
          sum[b][v] = fma(to_float(exact[b][v]), scale * broadcast(x_scales[b]), sum[b][v]);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v)
    for (int b = 0; b < kRows; ++b) store(sums + b * kBlockRows + v * kLanes, sum[b][v]);
}

// Computes sums [kRows][kBlockRows] of one block and one tile of inputs.
template <int kRows>
void dot_block(const Matrix& matrix, const uint8_t* block, const Inputs& inputs, int first,
               float* sums) {
  constexpr int kVectors = vectors_of(kRows);
  for (int row = 0; row < kBlockRows; row += kVectors * kLanes) {
    const int lane = row * 4;
    switch (matrix.format) {
      case Format::kFloat32:
        dot_float32<kVectors, kRows>(block + lane, matrix.num_cols, inputs.values(first),
                                     sums + row);
        break;
      case Format::kBf16:
        dot_bf16<kVectors, kRows>(block + lane, matrix.num_cols, inputs.values(first), sums + row);
        break;
      case Format::kInt8Rows:
        dot_int8<kVectors, kRows, false>(block, lane, matrix.num_groups(), inputs.words(first),
                                         inputs.scales(first), sums + row);
        break;
      case Format::kInt8Groups:
        dot_int8<kVectors, kRows, true>(block, lane, matrix.num_groups(), inputs.words(first),
                                        inputs.scales(first), sums + row);
        break;
      case Format::kInt4:
        dot_small<kVectors, kRows, 4>(block, lane, matrix.num_groups(), inputs.words(first),
                                      inputs.scales(first), sums + row);
        break;
      case Format::kInt6:
        dot_small<kVectors, kRows, 6>(block, lane, matrix.num_groups(), inputs.words(first),
                                      inputs.scales(first), sums + row);
        break;
    }
  }
}

// Multiplies blocks first_block .. end_block of `matrix` by all inputs. Calls use(block, row, sums)
// with the 32 sums of a block for an input row; `sums` is scratch [kTileRows][kBlockRows].
template <class Use>
void product(const Matrix& matrix, int first_block, int end_block, const Inputs& inputs, Use use) {
  alignas(64) float sums[kTileRows * kBlockRows];
  for (int block = first_block; block < end_block; ++block) {
    const uint8_t* weights = matrix.packed + block * matrix.block_bytes();
    for (int first = 0; first < inputs.num_rows();) {
      const int size = std::min(kTileRows, inputs.num_rows() - first);
      static_assert(kTileRows == 4, "a case for each size of a tile");
      switch (size) {
        case 1:
          dot_block<1>(matrix, weights, inputs, first, sums);
          break;
        case 2:
          dot_block<2>(matrix, weights, inputs, first, sums);
          break;
        case 3:
          dot_block<3>(matrix, weights, inputs, first, sums);
          break;
        case kTileRows:
          dot_block<kTileRows>(matrix, weights, inputs, first, sums);
          break;
      }
      for (int b = 0; b < size; ++b) use(block, first + b, sums + b * kBlockRows);
      first += size;
    }
  }
}

}  // namespace qwen_tts
