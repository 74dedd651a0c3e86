/* Functions of CUDA's driver that call those whose addresses another program writes to NAME_given. */
#include <cuda.h>

#define FORWARD(name, parameters, arguments)                                                                           \
    CUresult(*name##_given) parameters;                                                                                \
    CUresult name parameters                                                                                           \
    {                                                                                                                  \
        return name##_given arguments;                                                                                 \
    }

FORWARD(cuInit, (unsigned a), (a))
FORWARD(cuGetErrorName, (CUresult a, const char **b), (a, b))
FORWARD(cuDeviceGet, (CUdevice * a, int b), (a, b))
FORWARD(cuDevicePrimaryCtxRetain, (CUcontext * a, CUdevice b), (a, b))
FORWARD(cuCtxSetCurrent, (CUcontext a), (a))
FORWARD(cuModuleLoadData, (CUmodule * a, const void *b), (a, b))
FORWARD(cuModuleUnload, (CUmodule a), (a))
FORWARD(cuModuleGetFunction, (CUfunction * a, CUmodule b, const char *c), (a, b, c))
FORWARD(cuFuncSetAttribute, (CUfunction a, CUfunction_attribute b, int c), (a, b, c))
FORWARD(cuMemAlloc, (CUdeviceptr * a, size_t b), (a, b))
FORWARD(cuMemFree, (CUdeviceptr a), (a))
FORWARD(cuMemcpyHtoD, (CUdeviceptr a, const void *b, size_t c), (a, b, c))
FORWARD(cuMemcpyDtoH, (void *a, CUdeviceptr b, size_t c), (a, b, c))
FORWARD(cuStreamCreate, (CUstream * a, unsigned b), (a, b))
FORWARD(cuStreamSynchronize, (CUstream a), (a))
FORWARD(cuTensorMapEncodeTiled,
        (CUtensorMap * a, CUtensorMapDataType b, cuuint32_t c, void *d, const cuuint64_t *e, const cuuint64_t *f,
         const cuuint32_t *g, const cuuint32_t *h, CUtensorMapInterleave i, CUtensorMapSwizzle j,
         CUtensorMapL2promotion k, CUtensorMapFloatOOBfill l),
        (a, b, c, d, e, f, g, h, i, j, k, l))
FORWARD(cuTensorMapEncodeIm2col,
        (CUtensorMap * a, CUtensorMapDataType b, cuuint32_t c, void *d, const cuuint64_t *e, const cuuint64_t *f,
         const int *g, const int *h, cuuint32_t i, cuuint32_t j, const cuuint32_t *k, CUtensorMapInterleave l,
         CUtensorMapSwizzle m, CUtensorMapL2promotion n, CUtensorMapFloatOOBfill o),
        (a, b, c, d, e, f, g, h, i, j, k, l, m, n, o))
FORWARD(cuLaunchKernel,
        (CUfunction a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned g, unsigned h, CUstream i,
         void **j, void **k),
        (a, b, c, d, e, f, g, h, i, j, k))
