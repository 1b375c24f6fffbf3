# The package's tests. On four threads and the host device:
#
#     GPUMEM_BACKEND=host GPUMEM_LIBRARY=target/release/libgpumem.so \
#         julia -t 4 --project=bindings/julia/Gpumem.jl bindings/julia/Gpumem.jl/test/runtests.jl
using Test
using Gpumem

# Read when the library starts: late uses of what arenas have freed are found and named.
ENV["GPUMEM_ARENA_DEBUG"] = "check"
# What is refused here on purpose need not be said on stderr too.
get!(ENV, "GPUMEM_LOG", "0")

@testset "Gpumem" begin
    include("conformance.jl")
    include("julia_only.jl")
end
println("all of Julia's tests passed, on ", Threads.nthreads(), " threads and the ", Gpumem.backend(), " device, with Julia ", VERSION)
