// Weights in the layout that decoding reads.
//
// A block is 32 rows. Its columns come one (float32), two (bf16), four (int8) or eight (int4) at a
// time: 32 words of 32 bits, one for each row. Of int6, sixteen columns are three times 32 words.
// Columns of integers are padded to groups of 64, because the activations are then 16-bit integers
// with one scale per group. The layout is the same
// for every instruction set, and the size of a block is a multiple of 64 bytes, so files can hold
// packed matrices.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "cpu_decoder.h"

namespace qwen_tts {

constexpr int kBlockRows = 32;
constexpr int kStrideBytes = 4 * kBlockRows;  // from one step of a block's columns to the next
constexpr int kGroup = 64;                    // columns that share a scale
constexpr int kSmallGroup = 32;               // the same of int4 and int6

enum class Format { kFloat32, kBf16, kInt8Rows, kInt8Groups, kInt4, kInt6 };

inline float widen_bf16(uint16_t bits) {
  const uint32_t word = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

// One row of a caller's matrix; a null source is a row of zeros that pads a block.
struct SourceRow {
  const MatrixSource* source = nullptr;
  int row = 0;
};

struct Matrix {
  int num_cols = 0;
  Format format = Format::kFloat32;
  int num_blocks = 0;
  const uint8_t* packed = nullptr;

  bool is_integer() const { return format != Format::kFloat32 && format != Format::kBf16; }
  bool is_small() const { return format == Format::kInt4 || format == Format::kInt6; }
  int num_groups() const { return (num_cols + kGroup - 1) / kGroup; }

  size_t block_bytes() const {
    switch (format) {
      case Format::kFloat32:
        return size_t(num_cols) * kStrideBytes;
      case Format::kBf16:
        return size_t(num_cols + 1) / 2 * kStrideBytes;
      case Format::kInt8Rows:
        return kStrideBytes + size_t(num_groups()) * kGroup * kBlockRows;
      case Format::kInt8Groups:
        return size_t(num_groups()) * (kGroup + 2) * kBlockRows;
      case Format::kInt4:
        return size_t(num_groups()) * (kGroup / 2 + 2 * kGroup / kSmallGroup) * kBlockRows;
      case Format::kInt6:
        return size_t(num_groups()) * (kGroup * 3 / 4 + 2 * kGroup / kSmallGroup) * kBlockRows;
    }
    return 0;
  }
  size_t bytes() const { return block_bytes() * num_blocks; }
};

inline Format format_of(const MatrixSource& source) {
  if (source.format == kSourceFloat32) return Format::kFloat32;
  if (source.format == kSourceBf16) return Format::kBf16;
  if (source.format == kSourceInt4) return Format::kInt4;
  if (source.format == kSourceInt6) return Format::kInt6;
  return source.group ? Format::kInt8Groups : Format::kInt8Rows;
}

// A packed matrix in the caller's memory. `num_parts` matrices that take turns share each block.
inline Matrix make_matrix(const MatrixSource& packed, int num_parts = 1) {
  const int per_block = kBlockRows / num_parts;
  const int num_rows = packed.num_rows / num_parts;
  return {packed.num_cols, format_of(packed), (num_rows + per_block - 1) / per_block,
          static_cast<const uint8_t*>(packed.values)};
}

// The rows of a matrix that is packed from `num_parts` others: all rows of each in its turn, or, in
// every block, as many rows of one as of the next. Null rows pad the last block.
inline std::vector<SourceRow> rows_of(const MatrixSource* parts, int num_parts, bool take_turns) {
  std::vector<SourceRow> rows;
  const int per_turn = kBlockRows / num_parts;
  for (int first = 0; take_turns && first < parts->num_rows; first += per_turn)
    for (int part = 0; part < num_parts; ++part)
      for (int i = first; i < first + per_turn; ++i)
        rows.push_back(i < parts->num_rows ? SourceRow{parts + part, i} : SourceRow{});
  for (int part = 0; !take_turns && part < num_parts; ++part)
    for (int i = 0; i < parts[part].num_rows; ++i) rows.push_back({parts + part, i});
  rows.resize((rows.size() + kBlockRows - 1) / kBlockRows * kBlockRows);
  return rows;
}

// The bytes of a source's row.
inline size_t row_bytes(const MatrixSource& source) {
  const size_t bytes = source.format == kSourceFloat32 ? 4 : source.format == kSourceBf16 ? 2 : 1;
  return bytes * source.num_cols;
}

// Packs words [first, end) of 32 rows; returns the address for the next words. Missing columns are
// zero. Rows are read into a tile first: int8 takes four times as long with a byte of each in turn.
// arrange(words, i) makes packed word i of kMade, of kTaken words of a source.
template <int kTaken, int kMade, class Arrange>
uint8_t* pack_words(const SourceRow* rows, size_t first, size_t end, uint8_t* out,
                    Arrange arrange) {
  constexpr size_t kTileWords = 16;  // a cache line of each row
  uint32_t tile[kBlockRows][kTileWords];
  auto* to = reinterpret_cast<uint32_t*>(out);
  for (; first < end; first += kTileWords) {
    for (int r = 0; r < kBlockRows; ++r) {
      const MatrixSource* source = rows[r].source;
      const size_t begin = 4 * first, bytes = source ? row_bytes(*source) : 0;
      const size_t count = std::min(sizeof tile[r], bytes - std::min(bytes, begin));
      if (count < sizeof tile[r]) std::memset(tile[r], 0, sizeof tile[r]);
      if (!count) continue;
      const auto* values = static_cast<const uint8_t*>(source->values);
      std::memcpy(tile[r], values + bytes * rows[r].row + begin, count);
    }
    const size_t num_words = std::min(kTileWords, end - first);
    for (size_t word = 0; word < num_words; word += kTaken)
      for (int i = 0; i < kMade; ++i)
        for (int r = 0; r < kBlockRows; ++r) *to++ = arrange(tile[r] + word, i);
  }
  return reinterpret_cast<uint8_t*>(to);
}

inline void pack_block(const Matrix& matrix, const SourceRow* rows, uint8_t* out) {
  if (!matrix.is_integer()) {
    const size_t num_words = matrix.block_bytes() / kStrideBytes;
    pack_words<1, 1>(rows, 0, num_words, out, [](const uint32_t* word, int) { return *word; });
    return;
  }
  const bool has_groups = matrix.format != Format::kInt8Rows;
  const int group_size = matrix.is_small() ? kSmallGroup : kGroup;
  const int per_row = has_groups ? (matrix.num_cols + group_size - 1) / group_size : 1;
  const auto scale = [&](int r, int index) {
    const MatrixSource* source = rows[r].source;
    if (!source || index >= per_row) return 0.0f;
    return source->scales[size_t(rows[r].row) * per_row + index];
  };
  if (!has_groups) {
    for (int r = 0; r < kBlockRows; ++r) reinterpret_cast<float*>(out)[r] = scale(r, 0);
    out += kStrideBytes;
  }
  // The low bytes of the two 16-bit halves are columns 0 and 1, the high bytes 2 and 3.
  const auto swap_inner_bytes = [](const uint32_t* word, int) {
    return (*word & 0xff0000ff) | (*word & 0xff00) << 8 | (*word & 0xff0000) >> 8;
  };
  // The four bits from 4 i on of the two 16-bit halves are columns 2 i and 2 i + 1.
  const auto pair = [](const uint32_t* words, int i, uint32_t mask) {
    const uint32_t both = words[i / 2] >> i % 2 * 16;
    return (both & mask) | (both >> 8 & mask) << 16;
  };
  const auto four_bits = [=](const uint32_t* words, int) {
    uint32_t packed = 0;
    for (int i = 0; i < 4; ++i) packed |= pair(words, i, 0xf) << 4 * i;
    return packed;
  };
  // Of word i of 0 .. 2: the six bits from 0 and from 6 on are columns 4 i and 4 i + 1, and 4 i + 2
  // and 4 i + 3. The four bits from 12 on of words 0 and 2 are the upper bits of the last two
  // pairs, whose lower two bits word 1 has, from 14 and from 12 on.
  const auto six_bits = [=](const uint32_t* words, int i) {
    const uint32_t whole = pair(words, 2 * i, 0x3f) | pair(words, 2 * i + 1, 0x3f) << 6;
    if (i == 1) return whole | pair(words, 6, 3) << 14 | pair(words, 7, 3) << 12;
    return whole | (pair(words, i ? 7 : 6, 0x3c) >> 2) << 12;
  };
  constexpr size_t kGroupWords = kGroup / 4;
  for (int group = 0; group < matrix.num_groups(); ++group) {
    const int num_scales = has_groups ? kGroup / group_size : 0;
    for (int i = 0; i < num_scales; ++i)
      for (int r = 0; r < kBlockRows; ++r, out += 2) {
        const float value =
            scale(r, group * num_scales + i);  // quantization.py has rounded it to bf16
        std::memcpy(out, reinterpret_cast<const uint8_t*>(&value) + 2, 2);
      }
    const size_t first = group * kGroupWords;
    const size_t end = first + kGroupWords;
    if (matrix.format == Format::kInt4)
      out = pack_words<2, 1>(rows, first, end, out, four_bits);
    else if (matrix.format == Format::kInt6)
      out = pack_words<4, 3>(rows, first, end, out, six_bits);
    else
      out = pack_words<1, 1>(rows, first, end, out, swap_inner_bytes);
  }
}

}  // namespace qwen_tts
