// One decode pass of a small model on a CPU: a token of each request through all layers, in float32, quantised
// layers in integers (integers.h).
//
// The contract is model/inference/decode.py's padded pass; the formulas are those of model/attention, model/moe
// and model/transformer, named there with their places in the paper. Requests are split over threads, which meet
// once a layer: all latents of a layer are stored before any is read.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "integers.h"

namespace {

typedef float Eight __attribute__((vector_size(32)));
using Rows = std::vector<const float*>;

struct Sizes {  // as model/inference/native/binding.py gives them
    int64_t layers, D, N, nope, R, C, V_head, Q, E, K, F, F_dense, F_shared, I, J, top_k, vocabulary,
        page_size;
};

struct Numbers {
    double eps, latent_eps, routed_scale, rope_base, token_floor;
};

struct Layer {
    const float *attention_norm, *q_norm, *kv_norm, *k_up, *v_up;
    Matrix q_down, q_up, kv_down, out;
    const float *index_key, *index_norm, *index_norm_bias, *index_weight;  // null without a selection, and this:
    Matrix index_q;
    const float* ffn_norm;
    Matrix gate_up, down;                                                  // of all experts, or dense
    const float *router, *router_bias;                                     // null where dense, and these:
    Matrix shared_gate_up, shared_down;
    float *kv, *index_keys;                                                // the cache
    int16_t* routes;  // of each cache row, K experts; null where they are not recorded
};

inline Eight load(const float* from) {
    Eight value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline void store(float* to, Eight value) { std::memcpy(to, &value, sizeof value); }

// The sums of eight vectors, as one.
inline Eight sums(const Eight* a) {
    Eight two[4], four[2];
    for (int i = 0; i < 4; ++i)
        two[i] = __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
                 __builtin_shufflevector(a[2 * i], a[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    for (int i = 0; i < 2; ++i)
        four[i] = __builtin_shufflevector(two[2 * i], two[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                  __builtin_shufflevector(two[2 * i], two[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(four[0], four[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(four[0], four[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

// y[r][n] = x[r] . w[n] for R rows and 8 / R outputs at once, so that what is loaded is used several times and
// eight sums run side by side.
template <int R>
inline void times_tile(const float* const* x, const float* const* w, float* const* y, int64_t n, int64_t inputs) {
    constexpr int N = 8 / R;
    Eight total[8] = {};
    int64_t k = 0;
    for (; k + 8 <= inputs; k += 8) {
        Eight value[R];
        for (int r = 0; r < R; ++r) value[r] = load(x[r] + k);
        for (int i = 0; i < N; ++i) {
            const Eight weight = load(w[i] + k);
            for (int r = 0; r < R; ++r) total[r * N + i] += weight * value[r];
        }
    }
    float result[8];
    store(result, sums(total));
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < N; ++i) {
            float value = result[r * N + i];
            for (int64_t j = k; j < inputs; ++j) value += w[i][j] * x[r][j];
            y[r][n + i] = value;
        }
}

// For R rows and the outputs from ``n`` to ``outputs``; ``weight(n)`` is the n-th row of the weights.
template <int R, class Weight>
void times_rows(const float* const* x, Weight weight, float* const* y, int64_t n, int64_t outputs, int64_t inputs) {
    constexpr int N = 8 / R;
    const float* w[N];
    for (; n + N <= outputs; n += N) {
        for (int i = 0; i < N; ++i) w[i] = weight(n + i);
        times_tile<R>(x, w, y, n, inputs);
    }
    if (n == outputs) return;
    float last[R][N], *to[R];  // of the last tile some outputs are not wanted
    for (int i = 0; i < N; ++i) w[i] = weight(std::min(n + i, outputs - 1));
    for (int r = 0; r < R; ++r) to[r] = last[r];
    times_tile<R>(x, w, to, 0, inputs);
    for (int r = 0; r < R; ++r) std::copy(last[r], last[r] + (outputs - n), y[r] + n);
}

template <class Weight>
void times(const float* const* x, Weight weight, float* const* y, int64_t rows, int64_t outputs, int64_t inputs) {
    constexpr int64_t BLOCK = 32;  // outputs whose weights stay in the nearest cache for all rows
    for (int64_t n = 0; n < outputs; n += BLOCK) {
        const int64_t end = std::min(n + BLOCK, outputs);
        int64_t r = 0;
        for (; r + 4 <= rows; r += 4) times_rows<4>(x + r, weight, y + r, n, end, inputs);
        for (; r + 2 <= rows; r += 2) times_rows<2>(x + r, weight, y + r, n, end, inputs);
        if (r < rows) times_rows<1>(x + r, weight, y + r, n, end, inputs);
    }
}

// The same for weights that lie one behind another.
void times(const float* const* x, const float* w, float* const* y, int64_t rows, int64_t outputs, int64_t inputs) {
    times(x, [=](int64_t n) { return w + n * inputs; }, y, rows, outputs, inputs);
}

// The same for a weight of either kind.
void times(const float* const* x, const Matrix& w, float* const* y, int64_t rows, int64_t outputs, int64_t inputs,
           float floor) {
    if (w.floats)
        times(x, w.floats, y, rows, outputs, inputs);
    else
        integer_times(x, w, y, rows, outputs, inputs, floor);
}

float total(const float* x, int64_t n) {
    Eight eight = {};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) eight += load(x + i);
    float value = ((eight[0] + eight[4]) + (eight[2] + eight[6])) + ((eight[1] + eight[5]) + (eight[3] + eight[7]));
    for (; i < n; ++i) value += x[i];
    return value;
}

// exp by 2^n times a polynomial in the rest (coefficients of the Cephes library's expf): within 2 units in the last
// place. Below -87 it stays at exp(-87); what is not a number stays so.
inline Eight exponential(Eight x) {
    typedef int32_t Whole __attribute__((vector_size(32)));
    x = x < -87.0f ? Eight{} - 87.0f : x;
    x = x > 88.0f ? Eight{} + 88.0f : x;
    const Eight magic = Eight{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    const Eight n = (x * 1.44269504088896341f + magic) - magic;
    const Eight r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    Eight p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const Whole scale = (__builtin_convertvector(n, Whole) + 127) << 23;
    return p * (Eight)scale;
}

// x[i] = function(x[i], y[i]), eight at once.
template <class Function>
void each(float* x, const float* y, int64_t n, Function function) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) store(x + i, function(load(x + i), load(y + i)));
    if (i == n) return;
    float a[8] = {}, b[8] = {};
    std::copy(x + i, x + n, a);
    std::copy(y + i, y + n, b);
    store(a, function(load(a), load(b)));
    std::copy(a, a + (n - i), x + i);
}

void exponentials(float* x, int64_t n, float most) {
    each(x, x, n, [=](Eight value, Eight) { return exponential(value - most); });
}

void silu_times(float* gate, const float* up, int64_t n) {
    each(gate, up, n, [](Eight g, Eight u) { return g / (1.0f + exponential(-g)) * u; });
}

// A matrix with a row for each request of a thread.
struct Table {
    std::vector<float> data;
    std::vector<float*> row;
    int64_t width;
    Table(int64_t rows, int64_t width) : data(rows * width), row(rows), width(width) {
        for (int64_t r = 0; r < rows; ++r) row[r] = data.data() + r * width;
    }
    void product(const Table& x, const float* w) {  // of x with a weight (width, x.width)
        times(x.row.data(), w, row.data(), row.size(), width, x.width);
    }
    void product(const Table& x, const Matrix& w, float floor) {
        times(x.row.data(), w, row.data(), row.size(), width, x.width, floor);
    }
};

void rms_norm(const float* x, const float* weight, float* y, int64_t n, double eps) {
    float square = 0;
    Eight squares = {};
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) squares += load(x + k) * load(x + k);
    for (; k < n; ++k) square += x[k] * x[k];
    float parts[8];
    store(parts, squares);
    const float scale = 1.0f / std::sqrt((total(parts, 8) + square) / n + static_cast<float>(eps));
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

void layer_norm(float* x, const float* weight, const float* bias, int64_t n) {
    float mean = 0;
    for (int64_t i = 0; i < n; ++i) mean += x[i];
    mean /= n;
    float variance = 0;
    for (int64_t i = 0; i < n; ++i) variance += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.0f / std::sqrt(variance / n + 1e-6f);
    for (int64_t i = 0; i < n; ++i) x[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

void rotate(float* x, const float* turn, int64_t n) {  // pairs times (cos, sin)
    for (int64_t i = 0; i < n; i += 2) {
        const float a = x[i], b = x[i + 1], c = turn[i], s = turn[i + 1];
        x[i] = a * c - b * s;
        x[i + 1] = a * s + b * c;
    }
}

// Whole numbers that ascend as the floats descend; 0 and -0 are one.
inline uint32_t descending(float value) {
    uint32_t bits;
    value += 0.0f;
    std::memcpy(&bits, &value, sizeof bits);
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}

// to[n] = sum_k weight[n][k] * row(k) for R vectors of ``width`` at once.
template <int R, class Row>
void mix_rows(float* const* weight, Row row, int64_t count, float* const* to, int64_t width) {
    int64_t c = 0;
    for (; c + 8 <= width; c += 8) {
        Eight total[R] = {};
        for (int64_t k = 0; k < count; ++k) {
            const Eight value = load(row(k) + c);
            for (int r = 0; r < R; ++r) total[r] += value * weight[r][k];
        }
        for (int r = 0; r < R; ++r) store(to[r] + c, total[r]);
    }
    for (; c < width; ++c)
        for (int r = 0; r < R; ++r) {
            to[r][c] = 0;
            for (int64_t k = 0; k < count; ++k) to[r][c] += weight[r][k] * row(k)[c];
        }
}

template <class Row>
void mix(float* const* weight, Row row, int64_t vectors, int64_t count, float* const* to, int64_t width) {
    int64_t n = 0;
    for (; n + 4 <= vectors; n += 4) mix_rows<4>(weight + n, row, count, to + n, width);
    for (; n < vectors; ++n) mix_rows<1>(weight + n, row, count, to + n, width);
}

struct Pass {
    const Sizes& s;
    const Numbers& numbers;
    const float floor;            // of a token's scale
    const int64_t *input, pages;  // a row: token, slot, pages
    int64_t first, rows;          // the requests of this thread
    Table x, h, q_latent, q, kv, index_q, index_key, index_weight, values, attended;
    Table absorbed, context;      // of the heads of one request
    std::vector<float> turn, score, index_score;
    std::vector<std::vector<int64_t>> keys;  // the cache rows of all keys of a request
    std::vector<int64_t> place;              // of those it attends to
    std::vector<uint64_t> ranked;
    std::vector<float*> scores;

    Pass(const Sizes& s, const Numbers& numbers, const int64_t* input, int64_t pages, int64_t first, int64_t rows)
        : s(s), numbers(numbers), floor(numbers.token_floor), input(input), pages(pages), first(first), rows(rows), x(rows, s.D), h(rows, s.D),
          q_latent(rows, s.Q), q(rows, s.N * (s.nope + s.R)), kv(rows, s.C + s.R), index_q(rows, s.I * s.J),
          index_key(rows, s.J), index_weight(rows, s.I), values(rows, s.N * s.V_head), attended(rows, s.D),
          absorbed(s.N, s.C + s.R), context(s.N, s.C), turn(rows * s.R), keys(rows), scores(std::max(s.N, s.I)) {}

    const int64_t* request(int64_t r) const { return input + (first + r) * (2 + pages); }
    int64_t slot(int64_t r) const { return request(r)[1]; }

    void begin(const float* embed) {
        for (int64_t r = 0; r < rows; ++r) {
            std::memcpy(x.row[r], embed + request(r)[0] * s.D, s.D * sizeof(float));
            for (int64_t at = 0; at <= slot(r);) {
                int64_t row = request(r)[2 + at / s.page_size] * s.page_size;
                const int64_t end = std::min(slot(r) + 1, at + s.page_size);
                for (; at < end; ++at) keys[r].push_back(row++);
            }
            for (int64_t i = 0; i < s.R; i += 2) {
                const float power = std::pow(static_cast<float>(numbers.rope_base), static_cast<float>(i) / s.R);
                const float angle = static_cast<float>(slot(r)) / power;
                turn[r * s.R + i] = std::cos(angle);
                turn[r * s.R + i + 1] = std::sin(angle);
            }
        }
    }

    // Queries, and the latents that go into the cache.
    void project(const Layer& l) {
        for (int64_t r = 0; r < rows; ++r) rms_norm(x.row[r], l.attention_norm, h.row[r], s.D, numbers.eps);
        q_latent.product(h, l.q_down, floor);
        for (int64_t r = 0; r < rows; ++r)
            rms_norm(q_latent.row[r], l.q_norm, q_latent.row[r], s.Q, numbers.latent_eps);
        q.product(q_latent, l.q_up, floor);
        kv.product(h, l.kv_down, floor);
        if (l.index_key) {
            index_q.product(q_latent, l.index_q, floor);
            index_key.product(h, l.index_key);
            index_weight.product(h, l.index_weight);
        }
        for (int64_t r = 0; r < rows; ++r) {
            const float* angle = turn.data() + r * s.R;
            for (int64_t n = 0; n < s.N; ++n) rotate(q.row[r] + n * (s.nope + s.R) + s.nope, angle, s.R);
            rms_norm(kv.row[r], l.kv_norm, kv.row[r], s.C, numbers.latent_eps);
            rotate(kv.row[r] + s.C, angle, s.R);
            const int64_t to = keys[r].back();
            std::memcpy(l.kv + to * kv.width, kv.row[r], kv.width * sizeof(float));
            if (!l.index_key) continue;
            for (int64_t i = 0; i < s.I; ++i) rotate(index_q.row[r] + i * s.J, angle, s.R);
            layer_norm(index_key.row[r], l.index_norm, l.index_norm_bias, s.J);
            rotate(index_key.row[r], angle, s.R);
            std::memcpy(l.index_keys + to * s.J, index_key.row[r], s.J * sizeof(float));
        }
    }

    // Dot products of ``heads`` vectors with rows of a pool, a row of ``into`` for each head.
    void score_rows(const float* const* heads, int64_t count, const float* pool, const std::vector<int64_t>& at,
                    int64_t width, std::vector<float>& into) {
        into.resize(count * at.size());
        for (int64_t n = 0; n < count; ++n) scores[n] = into.data() + n * at.size();
        times(heads, [&](int64_t k) { return pool + at[k] * width; }, scores.data(), count, at.size(), width);
    }

    // The cache rows that a request attends to: all its keys, or the best by the indexer's score
    // sum_i weight_i relu(q_i . k), of equal ones the lower (paper section 2.1.1).
    void select(const Layer& l, int64_t r) {
        place = keys[r];
        const int64_t count = place.size();
        if (!l.index_key || count <= s.top_k) return;
        const float scale = std::pow(static_cast<float>(s.I), -0.5f) * std::pow(static_cast<float>(s.J), -0.5f);
        Rows heads(s.I);
        for (int64_t i = 0; i < s.I; ++i) heads[i] = index_q.row[r] + i * s.J;
        score_rows(heads.data(), s.I, l.index_keys, place, s.J, index_score);
        ranked.resize(count);
        for (int64_t at = 0; at < count; ++at) {
            float value = 0;
            for (int64_t i = 0; i < s.I; ++i)
                value += index_weight.row[r][i] * scale * std::max(index_score[i * count + at], 0.0f);
            ranked[at] = static_cast<uint64_t>(descending(value)) << 32 | at;
        }
        std::nth_element(ranked.begin(), ranked.begin() + s.top_k - 1, ranked.end());
        for (int64_t k = 0; k < s.top_k; ++k) place[k] = keys[r][ranked[k] & 0xFFFFFFFF];
        place.resize(s.top_k);
    }

    // Attention in the absorbed form: all heads read the latent rows themselves (paper section 2.1).
    void attend(const Layer& l) {
        const float scale = static_cast<float>(std::pow(static_cast<double>(s.nope + s.R), -0.5));
        for (int64_t r = 0; r < rows; ++r) {
            select(l, r);
            for (int64_t n = 0; n < s.N; ++n) {
                float* nope = q.row[r] + n * (s.nope + s.R);
                const float* up = l.k_up + n * s.nope * s.C;
                mix(&nope, [=](int64_t d) { return up + d * s.C; }, 1, s.nope, &absorbed.row[n], s.C);
                std::copy(nope + s.nope, nope + s.nope + s.R, absorbed.row[n] + s.C);
            }
            score_rows(absorbed.row.data(), s.N, l.kv, place, s.C + s.R, score);
            const int64_t count = place.size();
            for (int64_t n = 0; n < s.N; ++n) {
                float* weight = scores[n];
                for (int64_t k = 0; k < count; ++k) weight[k] *= scale;
                exponentials(weight, count, *std::max_element(weight, weight + count));
                const float share = 1.0f / total(weight, count);
                for (int64_t k = 0; k < count; ++k) weight[k] *= share;
            }
            const auto latent = [&](int64_t k) { return l.kv + place[k] * (s.C + s.R); };
            mix(scores.data(), latent, s.N, count, context.row.data(), s.C);
            for (int64_t n = 0; n < s.N; ++n) {
                float* value = values.row[r] + n * s.V_head;
                times(&context.row[n], l.v_up + n * s.V_head * s.C, &value, 1, s.V_head, s.C);
            }
        }
        attended.product(values, l.out, floor);
        add(attended);
    }

    void add(const Table& more) {
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t d = 0; d < s.D; ++d) x.row[r][d] += more.row[r][d];
    }

    // SwiGLU of some rows, added to x with the factor that belongs to each.
    void feed(const std::vector<int64_t>& chosen, const Matrix& gate_up, const Matrix& down, int64_t F,
              const std::vector<float>& factor) {
        const int64_t count = chosen.size();
        Table hidden(count, 2 * F), result(count, s.D);
        Rows from(count);
        for (int64_t k = 0; k < count; ++k) from[k] = h.row[chosen[k]];
        times(from.data(), gate_up, hidden.row.data(), count, 2 * F, s.D, floor);
        for (int64_t k = 0; k < count; ++k) silu_times(hidden.row[k], hidden.row[k] + F, F);
        times(hidden.row.data(), down, result.row.data(), count, s.D, F, floor);
        for (int64_t k = 0; k < count; ++k)
            for (int64_t d = 0; d < s.D; ++d) x.row[chosen[k]][d] += factor[k] * result.row[k][d];
    }

    void feed_forward(const Layer& l) {
        for (int64_t r = 0; r < rows; ++r) rms_norm(x.row[r], l.ffn_norm, h.row[r], s.D, numbers.eps);
        std::vector<int64_t> all(rows);
        std::iota(all.begin(), all.end(), 0);
        const std::vector<float> one(rows, 1.0f);
        if (!l.router) return feed(all, l.gate_up, l.down, s.F_dense, one);
        Table chance(rows, s.E);
        chance.product(h, l.router);
        std::vector<std::vector<int64_t>> chosen(s.E);
        std::vector<std::vector<float>> factor(s.E);
        std::vector<std::pair<float, int64_t>> order(s.E);
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t e = 0; e < s.E; ++e) {
                chance.row[r][e] = 1.0f / (1.0f + std::exp(-chance.row[r][e]));
                const float score = chance.row[r][e] + l.router_bias[e];
                order[e] = {std::isnan(score) ? INFINITY : -score, e};  // what is no number has no order
            }
            std::partial_sort(order.begin(), order.begin() + s.K, order.end());
            float sum_chosen = 0;
            for (int64_t k = 0; k < s.K; ++k) sum_chosen += chance.row[r][order[k].second];
            if (l.routes)
                for (int64_t k = 0; k < s.K; ++k) l.routes[keys[r].back() * s.K + k] = order[k].second;
            for (int64_t k = 0; k < s.K; ++k) {
                const int64_t e = order[k].second;
                chosen[e].push_back(r);
                factor[e].push_back(chance.row[r][e] / (sum_chosen + 1e-20f) *
                                    static_cast<float>(numbers.routed_scale));
            }
        }
        for (int64_t e = 0; e < s.E; ++e)
            feed(chosen[e], l.gate_up.of_expert(e, 2 * s.F, s.D), l.down.of_expert(e, s.D, s.F), s.F, factor[e]);
        feed(all, l.shared_gate_up, l.shared_down, s.F_shared, one);
    }

    // Logits, log-probabilities, and each row's best token with its log-probability (two rows of ``batch``).
    void finish(const float* norm, const float* head, float* logits, float* logprobs, double* best, int64_t batch) {
        std::vector<float*> to(rows);
        for (int64_t r = 0; r < rows; ++r) {
            rms_norm(x.row[r], norm, h.row[r], s.D, numbers.eps);
            to[r] = logits + (first + r) * s.vocabulary;
        }
        times(h.row.data(), head, to.data(), rows, s.vocabulary, s.D);
        for (int64_t r = 0; r < rows; ++r) {
            float* logprob = logprobs + (first + r) * s.vocabulary;
            const int64_t token = std::max_element(to[r], to[r] + s.vocabulary) - to[r];
            std::memcpy(logprob, to[r], s.vocabulary * sizeof(float));
            exponentials(logprob, s.vocabulary, to[r][token]);
            const float shift = to[r][token] + std::log(total(logprob, s.vocabulary));
            for (int64_t v = 0; v < s.vocabulary; ++v) logprob[v] = to[r][v] - shift;
            best[first + r] = token;
            best[batch + first + r] = logprob[token];
        }
    }
};

}  // namespace

extern "C" void decode_pass(const int64_t* sizes, const double* numbers, float* const* pointers, const int64_t* input,
                            int64_t batch, int64_t pages, float* logits, float* logprobs, double* best, int threads) {
    Sizes s;
    Numbers given;
    std::memcpy(&s, sizes, sizeof s);
    std::memcpy(&given, numbers, sizeof given);
    const float *embed = pointers[0], *norm = pointers[1], *head = pointers[2];
    std::vector<Layer> layers(s.layers);
    std::memcpy(static_cast<void*>(layers.data()), pointers + 3, s.layers * sizeof(Layer));
#pragma omp parallel num_threads(threads)
    {
        const int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
        const int64_t first = batch * me / team, rows = batch * (me + 1) / team - first;
        Pass pass(s, given, input, pages, first, rows);
        pass.begin(embed);
        for (const Layer& layer : layers) {
            pass.project(layer);
#pragma omp barrier
            pass.attend(layer);
            pass.feed_forward(layer);
        }
        pass.finish(norm, head, logits, logprobs, best, batch);
    }
}
