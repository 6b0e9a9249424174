"""A header with what the library was built for."""

load("@local_cuda//:config.bzl", "CUDA_VERSION")
load("@local_tensorflow//:config.bzl", "TENSORFLOW_VERSION")

_HEADER = """\
// Generated: what this library was built for.
#ifndef NV_NORMS_PLUGIN_BUILD_INFO_H_
#define NV_NORMS_PLUGIN_BUILD_INFO_H_

#define NV_NORMS_TENSORFLOW_VERSION "{tensorflow}"
// Empty without CUDA.
#define NV_NORMS_CUDA_VERSION "{cuda}"
#define NV_NORMS_BUILD_INFO_JSON {json}

#endif  // NV_NORMS_PLUGIN_BUILD_INFO_H_
"""

def _impl(ctx):
    info = json.encode(struct(
        tensorflow = TENSORFLOW_VERSION,
        cuda = CUDA_VERSION,
        cuda_architectures = ctx.attr.architectures,
    ))
    ctx.actions.write(ctx.outputs.out, _HEADER.format(
        tensorflow = TENSORFLOW_VERSION,
        cuda = CUDA_VERSION or "",
        json = json.encode(info),  # JSON's quoting of a string is C's.
    ))

build_info = rule(
    implementation = _impl,
    attrs = {
        "architectures": attr.string_list(),
        "out": attr.output(mandatory = True),
    },
)
