"""Compiles .cu files with nvcc, one action each, without a header of TensorFlow's."""

load("@local_cuda//:config.bzl", "CUDA_VERSION", "NVCC")

# $1: where the compiler's output goes (ptxas -v: registers, shared memory, spills of each kernel).
# A failure and warnings are shown as well.
_COMPILE = """
report="$1"; shift
"$@" > "$report" 2>&1 || { cat "$report" >&2; exit 1; }
grep -i -A3 warning "$report" >&2 || true
"""

def _gencode(architectures):
    """Machine code for each, and the PTX of the newest for the GPUs to come."""
    flags = []
    for name in architectures:
        number = name[len("sm_"):]
        flags.append("-gencode=arch=compute_%s,code=sm_%s" % (number, number))
    newest = architectures[-1][len("sm_"):]
    return flags + ["-gencode=arch=compute_%s,code=compute_%s" % (newest, newest)]

# A fifth of the machine code's bytes, for a seventh more of the compiler's time.
# Drivers before CUDA 12.4 cannot read it, those of CUDA 13 all can.
SMALLEST = ["--compress-mode=size"] if int((CUDA_VERSION or "0").split(".")[0]) >= 13 else []

def _impl(ctx):
    objects = []
    reports = []

    # Each list of architectures has files of its own: going from one to the other recompiles nothing.
    tag = "-".join(ctx.attr.architectures)
    for source in ctx.files.srcs:
        stem = "%s.%s/%s" % (ctx.label.name, tag, source.short_path[:-len(".cu")])
        object = ctx.actions.declare_file(stem + ".o")
        report = ctx.actions.declare_file(stem + ".ptxas.txt")
        arguments = ctx.actions.args()
        arguments.add(report)
        arguments.add(NVCC)
        arguments.add_all(_gencode(ctx.attr.architectures))
        arguments.add_all(ctx.attr.copts)
        arguments.add_all(["-I.", "-Xptxas", "-v", "-c", source, "-o", object])
        ctx.actions.run_shell(
            inputs = [source] + ctx.files.hdrs,
            outputs = [object, report],
            command = _COMPILE,
            arguments = [arguments],
            # Part of the action's key: the same path may hold another version tomorrow.
            env = {"NV_NORMS_CUDA_VERSION": CUDA_VERSION},
            use_default_shell_env = True,
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s for %s" % (source.short_path, tag),
        )
        objects.append(object)
        reports.append(report)
    return [
        DefaultInfo(files = depset(objects)),
        OutputGroupInfo(ptxas = depset(reports)),
    ]

cuda_objects = rule(
    implementation = _impl,
    attrs = {
        "architectures": attr.string_list(mandatory = True),
        "copts": attr.string_list(),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "srcs": attr.label_list(allow_files = [".cu"]),
    },
)
