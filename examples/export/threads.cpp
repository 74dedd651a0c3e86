/* A kernel exported as `layer`, run on threads of this program:
 *
 *   convsmith export mb1ic8ih6oc16kh3ph1 --dir FWD_B --attr-post-ops relu --accuracy strict --name layer \
 *       --threads 2 -o layer
 *   g++ -std=c++17 -pthread -Ilayer threads.cpp layer/liblayer.a -o threads */
#include "layer.h"

#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

// Runs every part on a thread of its own. A real program would have a pool.
extern "C" void run_parts(void *, convsmith_task task, void *data, std::size_t parts)
{
    std::vector<std::thread> threads;
    for (std::size_t part = 1; part < parts; part++)
        threads.emplace_back(task, data, part, parts);
    task(data, 0, parts);
    for (std::thread &thread : threads)
        thread.join();
}

// Elements of an array that begins at a multiple of 128 bytes.
template <typename T> class Aligned {
public:
    explicit Aligned(std::size_t bytes) : memory(bytes + 128)
    {
        auto address = reinterpret_cast<std::uintptr_t>(memory.data());
        first = reinterpret_cast<T *>(address + (128 - address % 128) % 128);
        count = bytes / sizeof(T);
    }
    T *data() { return first; }
    std::size_t size() const { return count; }

private:
    std::vector<unsigned char> memory;
    T *first;
    std::size_t count;
};

static Aligned<float> numbers(std::size_t bytes)
{
    Aligned<float> array(bytes);
    for (std::size_t i = 0; i < array.size(); i++)
        array.data()[i] = static_cast<float>(i * 7 % 5);
    return array;
}

int main()
{
    auto src = numbers(LAYER_SRC_BYTES), bia = numbers(LAYER_BIA_BYTES), dst = numbers(LAYER_DST_BYTES);
    auto wei = numbers(16 * 8 * 3 * 3 * sizeof(float));
    Aligned<unsigned char> packed(LAYER_PACKED_WEI_BYTES);
    layer_pack(wei.data(), packed.data());
    int code = layer_check(src.data(), LAYER_SRC_BYTES, packed.data(), LAYER_PACKED_WEI_BYTES, bia.data(),
                           LAYER_BIA_BYTES, dst.data(), LAYER_DST_BYTES);
    if (code != 0) {
        std::puts(layer_message(code));
        return 1;
    }
    layer(src.data(), packed.data(), bia.data(), dst.data(), run_parts, nullptr);
    double sum = 0;
    for (std::size_t i = 0; i < dst.size(); i++)
        sum += dst.data()[i];
    std::printf("sum %g\n", sum);
}
