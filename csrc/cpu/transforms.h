// Bilinear algorithms for short convolutions along time: y = A ((G w) * (B x)).
//
// m outputs of a filter of r taps come from fewer products than m * r: the inputs of a tile and the
// taps are evaluated at points as polynomials (B, G), multiplied there, and interpolated (A).
// Products are matrices, so the additions cost little, and weights are transformed once, when
// packed. Large tiles need many points and lose digits; two small algorithms, nested, lose fewer.
#pragma once
#include <algorithm>
#include <array>
#include <utility>

#include "vectors.h"

namespace qwen_tts {

// Calls visit(integral_constant<int, 0>), .., visit(integral_constant<int, count - 1>).
template <int... kIndex, class Visit>
inline void visit_each(std::integer_sequence<int, kIndex...>, Visit visit) {
  (visit(std::integral_constant<int, kIndex>()), ...);
}
template <int kCount, class Visit>
inline void visit_each(Visit visit) {
  visit_each(std::make_integer_sequence<int, kCount>(), visit);
}

template <int kRows, int kCols>
struct Table {
  double at[kRows][kCols] = {};
};

// Multiplies x by the table whose elements entry(row, col) returns; skips elements that are zero.
template <class Entry, int kRows, int kCols>
inline void apply(Entry entry, const Floats (&x)[kCols], Floats (&y)[kRows]) {
  visit_each<kRows>([&](auto row) {
    y[row] = zero_floats();
    visit_each<kCols>([&](auto col) {
      constexpr float factor = float(entry(row, col));
      if constexpr (factor != 0) y[row] = fma(broadcast(factor), x[col], y[row]);
    });
  });
}

constexpr double power_of_two_near(double value) {
  double power = 1;
  while (power * 1.4142 < value) power *= 2;
  while (power > value * 1.4142) power /= 2;
  return power;
}

// Toom-Cook: kOutputs outputs of kTaps taps from (their sum - 2) points and infinity.
template <int kOutputs, int kTaps>
struct Toom {
  static constexpr int kProducts = kOutputs + kTaps - 1;
  Table<kOutputs, kProducts> a;
  Table<kProducts, kTaps> g;
  Table<kProducts, kProducts> b;

  constexpr explicit Toom(std::array<double, kProducts - 1> points) {
    constexpr int last = kProducts - 1;
    for (int i = 0; i < kProducts; ++i) {
      // The polynomial that is 0 at the other points, and its value at this point.
      double q[kProducts] = {1}, value = 1;
      int degree = 0;
      for (int j = 0; j < last; ++j) {
        if (j == i) continue;
        if (i < last) value *= points[i] - points[j];
        for (int k = ++degree; k >= 0; --k) q[k] = (k ? q[k - 1] : 0) - points[j] * q[k];
      }
      for (int j = 0; j < kProducts; ++j) b.at[i][j] = q[j];
      double power = 1;
      for (int j = 0; i < last && j < std::max(kOutputs, kTaps); ++j, power *= points[i]) {
        if (j < kOutputs) a.at[j][i] = power;
        if (j < kTaps) g.at[i][j] = power / value;
      }
    }
    a.at[kOutputs - 1][last] = g.at[last][kTaps - 1] = 1;
    balance();
  }

 private:
  // Scales rows of B and G to near 1 by powers of two, which causes no rounding.
  constexpr void balance() {
    for (int i = 0; i < kProducts; ++i) {
      double most = 0, sum = 0;
      for (double each : b.at[i]) most = std::max(most, each < 0 ? -each : each);
      for (double each : g.at[i]) sum += each < 0 ? -each : each;
      const double of_b = power_of_two_near(most), of_g = power_of_two_near(sum);
      for (double& each : b.at[i]) each /= of_b;
      for (double& each : g.at[i]) each /= of_g;
      for (int j = 0; j < kOutputs; ++j) a.at[j][i] *= of_b * of_g;
    }
  }
};

// Compute B * x and A * products of a Toom, whose constants are exact in float32.
template <const auto& toom, int kRows, int kCols>
inline void to_points(const Floats (&x)[kCols], Floats (&y)[kRows]) {
  apply([](int row, int col) { return toom.b.at[row][col]; }, x, y);
}
template <const auto& toom, int kRows, int kCols>
inline void from_points(const Floats (&products)[kCols], Floats (&y)[kRows]) {
  apply([](int row, int col) { return toom.a.at[row][col]; }, products, y);
}

// Each transform has kTaps, kOutputs, kProducts, and
//   weights(taps, products)  for one input and one output channel
//   inputs(x, v)             kOutputs + kTaps - 1 steps -> kProducts
//   outputs(products, y)     kProducts -> kOutputs

// Two taps: 4 products for 3 outputs instead of 6. A block's transposed convolution has two taps.
struct TwoTaps {
  static constexpr Toom<3, 2> kToom{{0, 1, -1}};
  static constexpr int kTaps = 2, kOutputs = 3, kProducts = 4;

  static void weights(const double* taps, double* products) {
    for (int i = 0; i < kProducts; ++i)
      products[i] = kToom.g.at[i][0] * taps[0] + kToom.g.at[i][1] * taps[1];
  }
  static void inputs(const Floats (&x)[4], Floats (&v)[4]) { to_points<kToom>(x, v); }
  static void outputs(const Floats (&products)[4], Floats (&y)[3]) {
    from_points<kToom>(products, y);
  }
};

// Seven taps: 17 products for 6 outputs instead of 42. Even steps x0 and odd steps x1 meet even
// taps w0 and odd taps w1 as in Karatsuba's product, in three filters of four or three taps:
//   y0 = (x0 - x1) w0 + x1 (w0 + w1), y1 = x1 (w0 + w1) + (x0 one step on - x1) w1
struct SevenTaps {
  static constexpr Toom<3, 4> kFour{{0, 1, -1, 0.5, -2}};
  static constexpr Toom<3, 3> kThree{{0, 1, -1, 0.5}};
  static constexpr int kTaps = 7, kOutputs = 6, kProducts = 17;

  static void weights(const double* taps, double* products) {
    for (int i = 0; i < kProducts; ++i) products[i] = 0;
    for (int j = 0; j < 4; ++j) {
      const double even = taps[2 * j], odd = j < 3 ? taps[2 * j + 1] : 0;
      for (int i = 0; i < 6; ++i) {
        products[i] += kFour.g.at[i][j] * even;
        products[6 + i] += kFour.g.at[i][j] * (even + odd);
      }
      for (int i = 0; i < 5 && j < 3; ++i) products[12 + i] += kThree.g.at[i][j] * odd;
    }
  }

  static void inputs(const Floats (&x)[12], Floats (&v)[17]) {
    Floats even[6], both[6], odd[5], of_even[6], of_both[6], of_odd[5];
    visit_each<6>([&](auto i) {
      both[i] = x[2 * i + 1];
      even[i] = x[2 * i] - x[2 * i + 1];
      if constexpr (i < 5) odd[i] = x[2 * i + 2] - x[2 * i + 1];
    });
    to_points<kFour>(even, of_even);
    to_points<kFour>(both, of_both);
    to_points<kThree>(odd, of_odd);
    visit_each<6>([&](auto i) {
      v[i] = of_even[i], v[6 + i] = of_both[i];
      if constexpr (i < 5) v[12 + i] = of_odd[i];
    });
  }

  static void outputs(const Floats (&products)[17], Floats (&y)[6]) {
    Floats of_even[6], of_both[6], of_odd[5], even[3], both[3], odd[3];
    visit_each<6>([&](auto i) {
      of_even[i] = products[i], of_both[i] = products[6 + i];
      if constexpr (i < 5) of_odd[i] = products[12 + i];
    });
    from_points<kFour>(of_even, even);
    from_points<kFour>(of_both, both);
    from_points<kThree>(of_odd, odd);
    visit_each<3>([&](auto i) {
      y[2 * i] = even[i] + both[i];
      y[2 * i + 1] = odd[i] + both[i];
    });
  }
};

enum class Transform { kNone, kTwoTaps, kSevenTaps };

// Calls visit(T()) for the type of a transform, unless it is kNone.
template <class Visit>
inline auto with_transform(Transform transform, Visit visit) {
  return transform == Transform::kTwoTaps ? visit(TwoTaps()) : visit(SevenTaps());
}

inline int products_of(Transform transform, int num_taps) {
  if (transform == Transform::kNone) return num_taps;
  return with_transform(transform, [](auto t) { return decltype(t)::kProducts; });
}

// Computes the products [products_of(transform, num_taps)] of taps [num_taps].
inline void transform_weights(Transform transform, const double* taps, int num_taps,
                              double* products) {
  if (transform == Transform::kNone) {
    std::copy_n(taps, num_taps, products);
    return;
  }
  with_transform(transform, [&](auto t) { decltype(t)::weights(taps, products); });
}

}  // namespace qwen_tts
