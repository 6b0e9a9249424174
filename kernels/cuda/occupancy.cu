#include <cuda_runtime.h>

#include <tuple>

#include "kernels/cuda/known.h"
#include "kernels/cuda/occupancy.h"

namespace nv_norms {
namespace cuda {

cudaError_t AllowShared(const void* kernel) {
  using Key = std::tuple<int, const void*>;
  static auto& known = *new Known<Key, bool>;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const Key key(device, kernel);
  bool allowed = false;
  if (known.Find(key, &allowed)) return cudaSuccess;
  int most = 0;
  cudaFuncAttributes attributes;
  error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 most - static_cast<int>(attributes.sharedSizeBytes));
  }
  if (error == cudaSuccess) known.Keep(key, true);
  return error;
}

int ResidentBlocks(const void* kernel, int threads, int64_t shared) {
  using Key = std::tuple<int, const void*, int, int64_t>;
  static auto& known = *new Known<Key, int>;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  const Key key(device, kernel, threads, shared);
  int blocks = 0;
  if (known.Find(key, &blocks)) return blocks;
  if (AllowShared(kernel) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads,
                                                    static_cast<size_t>(shared)) != cudaSuccess) {
    cudaGetLastError();  // not an error of the launches to come
    return 0;            // asked again next time
  }
  known.Keep(key, blocks);
  return blocks;
}

cudaError_t AllowCluster(const void* kernel, int blocks) {
  if (blocks <= 8) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

int ResidentClusters(const void* kernel, int cluster, int threads, int64_t shared) {
  using Key = std::tuple<int, const void*, int, int, int64_t>;
  static auto& known = *new Known<Key, int>;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  const Key key(device, kernel, cluster, threads, shared);
  int clusters = 0;
  if (known.Find(key, &clusters)) return clusters;
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeClusterDimension;
  attribute[0].val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute[0].val.clusterDim.y = 1;
  attribute[0].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.attrs = attribute;
  config.numAttrs = 1;
  if (AllowShared(kernel) != cudaSuccess || AllowCluster(kernel, cluster) != cudaSuccess ||
      cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
    cudaGetLastError();  // not an error of the launches to come
    return 0;            // asked again next time
  }
  known.Keep(key, clusters);
  return clusters;
}

}  // namespace cuda
}  // namespace nv_norms
