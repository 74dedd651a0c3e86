/* A kernel exported as `layer`, with its weights built in, in a program without a C library:
 *
 *   convsmith export mb1ic8ih6oc16kh3ph1 --dir FWD_B --attr-post-ops relu --accuracy strict --name layer \
 *       --threads 1 --weights w.npy --target x86_64-none-elf+avx2 -o layer
 *   gcc -O2 -ffreestanding -nostdlib -static -Ilayer bare.c layer/liblayer.a -o bare
 *
 * It ends with the status 0 where the sum of the results is EXPECTED. */
#include "layer.h"

#ifndef EXPECTED
#define EXPECTED 0
#endif

/* A kernel that needs scratch memory takes it as its last argument. */
#ifdef LAYER_WORKSPACE_BYTES
static _Alignas(128) unsigned char scratch[LAYER_WORKSPACE_BYTES];
#define WORKSPACE , scratch
#else
#define WORKSPACE
#endif

static float src[LAYER_SRC_BYTES / 4], bia[LAYER_BIA_BYTES / 4], dst[LAYER_DST_BYTES / 4];

static void numbers(float *array, size_t count)
{
    for (size_t i = 0; i < count; i++)
        array[i] = (float)(i * 7 % 5);
}

static __attribute__((noreturn)) void end(long status)
{
    __asm__ volatile("syscall" : : "a"(60L), "D"(status) : "rcx", "r11", "memory");
    __builtin_unreachable();
}

__attribute__((force_align_arg_pointer, noreturn)) void _start(void)
{
    numbers(src, LAYER_SRC_BYTES / 4);
    numbers(bia, LAYER_BIA_BYTES / 4);
    layer(src, bia, dst WORKSPACE);
    double sum = 0;
    for (size_t i = 0; i < LAYER_DST_BYTES / 4; i++)
        sum += dst[i];
    end(sum == EXPECTED ? 0 : 1);
}
