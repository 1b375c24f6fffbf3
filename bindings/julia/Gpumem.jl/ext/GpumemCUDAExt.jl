# Beside CUDA.jl: its streams and its arrays. Loaded by Julia 1.9 and newer when both packages are.
module GpumemCUDAExt

using CUDA
using Gpumem

Gpumem.Stream(s::CUDA.CuStream) = Gpumem.Stream(Ptr{Cvoid}(UInt(reinterpret(UInt, s.handle))))

"""
    CuArray{T}(buffer, dims...)

An array of CUDA.jl's on a buffer's memory, which it does not own: it keeps the buffer from being
collected, but an arena ends it all the same, and views of the array must not outlive it.
"""
function CUDA.CuArray{T}(b::Gpumem.DeviceBuffer, dims::Integer...) where {T}
    shape = isempty(dims) ? (sizeof(b) ÷ sizeof(T),) : Int.(dims)
    prod(shape) * sizeof(T) <= sizeof(b) || throw(ArgumentError("$(shape) of $T do not fit $(sizeof(b)) bytes"))
    Gpumem.check(b, "CuArray", "buffer")
    array = unsafe_wrap(CUDA.CuArray, CUDA.CuPtr{T}(UInt(Gpumem.address(b))), shape; own = false)
    # The closure holds the buffer for as long as the array is reachable.
    return finalizer(_ -> (b; nothing), array)
end

end
