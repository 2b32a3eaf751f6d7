// A weight as decode.cpp multiplies by it: floats, or integers by the contract of model/kernels/int8_linear (int8
// tokens with a scale each, sums in int32, one scale an output).

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

struct Matrix {
    const float* floats;        // null where there are integers,
    const int8_t* bytes;        // of one value a byte,
    const uint8_t* halves;      // or two: value j in the low and value j + inputs / 2 in the high four bits
    const float* scale;         // of each output

    Matrix of_expert(int64_t e, int64_t outputs, int64_t inputs) const {
        const int64_t at = e * outputs * inputs;
        return {floats ? floats + at : nullptr, bytes ? bytes + at : nullptr, halves ? halves + at / 2 : nullptr,
                scale ? scale + e * outputs : nullptr};
    }
};

// rounding.quantize_tokens of one token; returns the scale.
inline float round_token(const float* x, int16_t* to, int64_t n, float floor) {
    float most = 0, wrong = 0;  // 0 times what is no number, or infinite, is no number
    for (int64_t i = 0; i < n; ++i) {
        most = std::max(most, std::fabs(x[i]));
        wrong += x[i] * 0.0f;
    }
    const float scale = std::max(most / 127.0f, floor);
    for (int64_t i = 0; i < n; ++i)
        to[i] = static_cast<int16_t>(std::min(std::max(std::nearbyint(x[i] / scale), -127.0f), 127.0f));
    return scale + wrong;
}

// Tokens are kept in 16 bits: the processor multiplies pairs of those and adds them in 32.
inline int32_t dot(const int16_t* x, const int8_t* w, int64_t inputs) {
    int32_t total = 0;
    for (int64_t k = 0; k < inputs; ++k) total += x[k] * static_cast<int16_t>(w[k]);
    return total;
}

// Both halves come out 16 times too large.
inline int32_t dot(const int16_t* x, const uint8_t* w, int64_t inputs) {
    const int64_t half = inputs / 2;
    int32_t total = 0;
    for (int64_t k = 0; k < half; ++k) total += x[k] * static_cast<int16_t>(static_cast<int8_t>(w[k] << 4));
    for (int64_t k = 0; k < half; ++k) total += x[half + k] * static_cast<int16_t>(static_cast<int8_t>(w[k] & 0xF0));
    return total >> 4;
}

// y[r][n] = (x[r] . w[n]) * scale of the token * scale of the output.
inline void integer_times(const float* const* x, const Matrix& w, float* const* y, int64_t rows, int64_t outputs,
                          int64_t inputs, float floor) {
    std::vector<int16_t> token(inputs);
    for (int64_t r = 0; r < rows; ++r) {
        const float scale = round_token(x[r], token.data(), inputs, floor);
        for (int64_t n = 0; n < outputs; ++n) {
            const int32_t total = w.bytes ? dot(token.data(), w.bytes + n * inputs, inputs)
                                          : dot(token.data(), w.halves + n * (inputs / 2), inputs);
            y[r][n] = static_cast<float>(total) * scale * w.scale[n];
        }
    }
}
